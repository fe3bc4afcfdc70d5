"""Run the same tool loop by hand over aiohttp, without log, policy or recovery. Print one JSON line."""

import asyncio
import json
import resource
import sys

import aiohttp

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Add two integers.",
            "parameters": {
                "type": "object",
                "required": ["a", "b"],
                "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            },
        },
    }
]


def add(a: int, b: int) -> int:
    return a + b


async def read_events(client: aiohttp.ClientSession, url: str, body: dict):
    headers = {"content-type": "application/json"}
    async with client.post(url, data=json.dumps(body).encode(), headers=headers) as response:
        async for line in response.content:
            if line.startswith(b"data: ") and not line.startswith(b"data: [DONE]"):
                yield json.loads(line[6:])


async def run_session(client: aiohttp.ClientSession, url: str, model: str) -> int:
    """Run one session to its end, and return the number of text chunks."""
    messages = [{"role": "system", "content": "You add."}, {"role": "user", "content": "go"}]
    while True:
        text, calls = [], {}
        options = {"stream": True, "stream_options": {"include_usage": True}}
        async for chunk in read_events(client, url, {"model": model, "messages": messages, "tools": TOOLS, **options}):
            if not chunk["choices"]:
                continue
            delta = chunk["choices"][0]["delta"]
            if delta.get("content"):
                text.append(delta["content"])
            for piece in delta.get("tool_calls") or ():
                call = calls.setdefault(piece["index"], {"id": "", "name": "", "arguments": []})
                call["id"] = piece.get("id") or call["id"]
                call["name"] = piece["function"].get("name") or call["name"]
                call["arguments"].append(piece["function"].get("arguments") or "")
        if not calls:
            return len(text)
        messages.append(
            {
                "role": "assistant",
                "content": "".join(text) or None,
                "tool_calls": [
                    {
                        "id": call["id"],
                        "type": "function",
                        "function": {"name": call["name"], "arguments": "".join(call["arguments"])},
                    }
                    for call in calls.values()
                ],
            }
        )
        for call in calls.values():
            out = add(**json.loads("".join(call["arguments"])))
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": str(out)})


def read_cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


async def main(port: str, model: str, at_once: int, rounds: int) -> None:
    url = f"http://127.0.0.1:{port}/v1/chat/completions"
    connector = aiohttp.TCPConnector(limit=1000)
    async with aiohttp.ClientSession(connector=connector) as client:
        for _ in range(2):
            await asyncio.gather(*(run_session(client, url, model) for _ in range(at_once)))
        took: list[float] = []
        for _ in range(rounds):
            before = read_cpu()
            await asyncio.gather(*(run_session(client, url, model) for _ in range(at_once)))
            took.append(read_cpu() - before)
    print(json.dumps({"cpu_s": min(took)}))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
