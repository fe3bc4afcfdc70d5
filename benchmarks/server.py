"""Compare the server with a bare relay on the same fake model: `python benchmarks/server.py [--reps N]`.

The CPU time is that of the server process, per token from the model's socket to the client's. The relay only connects
aiohttp to Starlette. Compare ratios within one run. `--crowd` runs the crowd test at full size.
"""

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import aiohttp

HERE = Path(__file__).parent
TOKEN = "a-token-of-the-benchmark"
AUTH = {"authorization": f"Bearer {TOKEN}"}
STREAMS, TOKENS = 20, 400
PACED = f"steps-0-tok-{TOKENS}-delay-5ms"
SHORT = "steps-0-tok-1"
CROWD = "steps-5-tok-50-delay-5ms"
WATCHERS, WATCHED_TOKENS = 1000, 50
KINDS = ("relay", "frames", "events", "relay_ask", "ask", "watchers")
GOALS = {"frames": ("relay", 2), "events": ("relay", 2), "ask": ("relay_ask", 1.5), "watchers": ("", 30)}
"""What is compared with which figure of the relay, and the most that it should be; without a relay in µs."""
WATCHED = f"steps-0-tok-{WATCHED_TOKENS}-delay-150ms"


# --- the servers, each in its own process


def serve_treadle(port: str, model: str, store: str) -> None:
    from treadle import Agent, Limits, Runtime, tool
    from treadle.app.event_loop import run_in_fast_loop
    from treadle.models.catalog import resolve_model
    from treadle.server.app import create_app
    from treadle.server.config import ServerConfig
    from treadle.server.serve import serve_app
    from treadle.server.tokens import Token

    @tool(safety="safe")
    async def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    found = resolve_model(model, base_url=f"http://127.0.0.1:{port}/v1")
    agent = Agent(found, tools=[add], limits=Limits(turns=200, calls=1000))
    config = ServerConfig(tokens=(Token("owner", TOKEN),), rate=1e6, max_open_requests=100_000)
    app = create_app(Runtime(store, [agent]), config)
    run_in_fast_loop(serve_app(app, "127.0.0.1", 0, lambda address: print(address, flush=True)))


def serve_relay(port: str, model: str, store: str) -> None:
    import socket

    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import StreamingResponse
    from starlette.routing import Route

    from treadle.app.event_loop import run_in_fast_loop

    client: list[aiohttp.ClientSession] = []

    async def relay(request: Request) -> StreamingResponse:
        await request.body()
        if not client:
            client.append(aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)))
        body = {"model": model, "stream": True, "messages": [{"role": "user", "content": "go"}]}

        async def pieces() -> AsyncIterator[bytes]:
            async with client[0].post(f"http://127.0.0.1:{port}/v1/chat/completions", json=body) as answer:
                async for data in answer.content.iter_any():
                    yield data

        return StreamingResponse(pieces(), media_type="text/event-stream")

    # Without the protocol, asyncio leaves Nagle's algorithm on, and every answer waits 40 ms.
    listening = socket.socket(proto=socket.IPPROTO_TCP)
    listening.bind(("127.0.0.1", 0))
    listening.listen(4096)
    print(f"http://127.0.0.1:{listening.getsockname()[1]}", flush=True)
    app = Starlette(routes=[Route("/{rest:path}", relay, methods=["POST"])])
    run_in_fast_loop(uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False)).serve([listening]))


# --- the clients


@contextmanager
def start_process(*command: str) -> Iterator[tuple[str, int]]:
    """Start a child process, and yield the first line that it prints and its id."""
    child = subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True)
    assert child.stdout is not None
    try:
        yield child.stdout.readline().strip(), child.pid
    finally:
        child.kill()
        child.wait()


def read_cpu(pid: int) -> float:
    """Return the CPU seconds of the threads of a process. The times in `stat` are counted in steps of 10 ms."""
    threads = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(thread.read_text().split()[0]) for thread in threads) / 1e9


def read_memory(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) * 1024


async def create_sessions(http: aiohttp.ClientSession, count: int) -> list[str]:
    async def make() -> str:
        async with http.post("/v1/sessions", json={}) as answer:
            return (await answer.json())["id"]

    return await asyncio.gather(*(make() for _ in range(count)))


async def count_streamed_tokens(http: aiohttp.ClientSession, path: str, mark: bytes) -> int:
    """Read a streamed answer to its end, and count its tokens."""
    async with http.post(path, json={"content": "go"}) as answer:
        assert answer.status == 200, await answer.text()
        return (await answer.read()).count(mark)


async def count_watched_tokens(http: aiohttp.ClientSession, session_id: str, mark: bytes) -> int:
    """Read a session's events until its run ends, and count the tokens."""
    pieces: list[bytes] = []
    async with http.get(f"/v1/sessions/{session_id}/events") as answer:
        async with http.post(f"/v1/sessions/{session_id}/messages?wait=0", json={"content": "go"}) as begun:
            assert begun.status == 200, await begun.text()
        async for piece in answer.content.iter_any():
            pieces.append(piece)
            if b'"type":"run_finished"' in b"".join(pieces[-3:]):
                break
    return b"".join(pieces).count(mark)


async def measure_streaming(base: str, pid: int, kind: str) -> float:
    """Return the CPU seconds per streamed token."""
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(base, headers=AUTH, connector=connector) as http:
        ids = await create_sessions(http, STREAMS) if kind != "relay" else ["x"] * STREAMS
        before = read_cpu(pid)
        if kind == "events":
            counts = await asyncio.gather(*(count_watched_tokens(http, one, b'"text_delta"') for one in ids))
        else:
            mark = b'"content"' if kind == "relay" else b'"delta"'
            paths = [f"/v1/sessions/{one}/messages/stream" for one in ids]
            counts = await asyncio.gather(*(count_streamed_tokens(http, path, mark) for path in paths))
        assert all(count >= TOKENS / 2 for count in counts), counts[:3]  # tokens of one read may come as one fragment
        return (read_cpu(pid) - before) / (STREAMS * TOKENS)


async def measure_messages(base: str, pid: int, kind: str, at_once: int = 8, each: int = 50) -> dict[str, float]:
    """Return the CPU seconds per message, the messages per second, and the latency of one client in seconds."""
    async with aiohttp.ClientSession(base, headers=AUTH) as http:
        ids = await create_sessions(http, at_once) if kind == "ask" else ["x"] * at_once

        async def talk(session_id: str, count: int) -> list[float]:
            taken: list[float] = []
            for _ in range(count):
                began = time.perf_counter()
                async with http.post(f"/v1/sessions/{session_id}/messages", json={"content": "go"}) as answer:
                    text = await answer.text()
                taken.append(time.perf_counter() - began)
                assert '"answered"' in text or kind != "ask", text
            return taken

        await talk(ids[0], 10)  # imports, connections, caches
        began, cpu = time.perf_counter(), read_cpu(pid)
        await asyncio.gather(*(talk(one, each) for one in ids))
        count = at_once * each
        found = {"cpu_s": (read_cpu(pid) - cpu) / count, "rate": count / (time.perf_counter() - began)}
        found["post_s"] = statistics.median(await talk(ids[0], 50))
        if kind == "ask":
            found["get_s"] = statistics.median([await time_get(http, "/v1/agents") for _ in range(50)])
        return found


async def time_get(http: aiohttp.ClientSession, path: str) -> float:
    began = time.perf_counter()
    async with http.get(path) as answer:
        assert answer.status == 200, await answer.text()
        await answer.read()
    return time.perf_counter() - began


async def measure_watchers(base: str, pid: int) -> dict[str, float]:
    """Let many clients watch one session. Return the CPU seconds per token and watcher."""
    connector, timeout = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(total=600)
    async with aiohttp.ClientSession(base, headers=AUTH, connector=connector, timeout=timeout) as http:
        (session_id,) = await create_sessions(http, 1)
        path = f"/v1/sessions/{session_id}/events"
        watches = await asyncio.gather(*(http.get(path) for _ in range(WATCHERS)))
        before = read_cpu(pid)

        async def count_tokens(answer: aiohttp.ClientResponse) -> int:
            count, tail = 0, b""
            async for piece in answer.content.iter_any():
                count += piece.count(b'"text_delta"')
                tail = (tail + piece)[-4000:]
                if b'"type":"run_finished"' in tail:
                    break
            answer.close()
            return count

        reading = asyncio.gather(*(count_tokens(one) for one in watches))
        async with http.post(f"/v1/sessions/{session_id}/messages?wait=0", json={"content": "go"}) as begun:
            assert begun.status == 200, await begun.text()
        counts = await reading
        assert sum(counts) > 0.9 * WATCHERS * WATCHED_TOKENS, "the tokens came too fast: several went as one"
        return {"cpu_s": (read_cpu(pid) - before) / sum(counts)}


async def measure_crowd(base: str, pid: int, count: int = 200) -> dict[str, float]:
    """Run sessions of five calls with a watcher each, and check that each watcher saw the log."""
    connector, timeout = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(total=600)
    async with aiohttp.ClientSession(base, headers=AUTH, connector=connector, timeout=timeout) as http:
        ids = await create_sessions(http, count)
        before, rss = read_cpu(pid), read_memory(pid)

        async def one(session_id: str) -> None:
            seen: list[dict[str, object]] = []
            rest = b""
            async with http.get(f"/v1/sessions/{session_id}/events") as answer:
                async with http.post(f"/v1/sessions/{session_id}/messages?wait=0", json={"content": "go"}) as begun:
                    assert begun.status == 200
                async for piece in answer.content.iter_any():
                    *lines, rest = (rest + piece).split(b"\n")
                    for line in lines:
                        if line.startswith(b"data: "):
                            event = json.loads(line[6:])
                            if "seq" in event:
                                seen.append(event)
                    if seen and seen[-1]["type"] == "run_finished":
                        break
            async with http.get(f"/v1/sessions/{session_id}/events?follow=false") as answer:
                assert seen == await answer.json(), "a client's view is not the log"

        await asyncio.gather(*(one(session_id) for session_id in ids))
        tokens = count * 50  # under load many of them come as one fragment
        return {"cpu_us": (read_cpu(pid) - before) / tokens * 1e6, "kB": (read_memory(pid) - rss) / count / 1e3}


def measure(kind: str, port: str) -> dict[str, float]:
    models = {"ask": SHORT, "relay_ask": SHORT, "crowd": CROWD, "watchers": WATCHED}
    served = "relay" if kind.startswith("relay") else "treadle"
    with tempfile.TemporaryDirectory() as folder:
        command = (__file__, "--serve", served, port, models.get(kind, PACED), f"{folder}/store.db")
        with start_process(*command) as (base, pid):
            match kind:
                case "ask" | "relay_ask":
                    return asyncio.run(measure_messages(base, pid, kind))
                case "crowd":
                    return asyncio.run(measure_crowd(base, pid))
                case "watchers":
                    return asyncio.run(measure_watchers(base, pid))
                case _:
                    return {"cpu_s": asyncio.run(measure_streaming(base, pid, kind))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reps", type=int, default=3, help="processes a measurement; the least CPU time counts")
    parser.add_argument("--crowd", action="store_true", help="200 sessions of 5 calls with a watcher each")
    parser.add_argument("--only", choices=KINDS, nargs="+", default=KINDS, help="what to measure")
    parser.add_argument("--serve", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        {"treadle": serve_treadle, "relay": serve_relay}[options.serve[0]](*options.serve[1:])
        return
    with start_process(str(HERE / "fake_model.py"), "--until-eof") as (said, _):
        port = said.split()[1]
        if options.crowd:
            found = measure("crowd", port)
            print(f"200 sessions at once: {found['cpu_us']:.0f} µs CPU a token, {found['kB']:.0f} kB a session")
            return
        best: dict[str, dict[str, float]] = {}
        for _ in range(options.reps):
            for kind in options.only:
                found = measure(kind, port)
                best[kind] = min(best.get(kind, found), found, key=lambda figures: figures["cpu_s"])
    print_table(best)


def print_table(best: dict[str, dict[str, float]]) -> None:
    """Print the figures and how they compare with the relay's, as far as they were measured."""
    print("| what | figure | goal | |\n|---|---|---|---|")
    names = {
        "relay": "a token through the bare relay",
        "frames": "a token as a frame",
        "events": "a token as our own event",
        "relay_ask": "a message through the bare relay",
        "ask": "`POST messages`",
        "watchers": f"a token to each of {WATCHERS} watchers",
    }
    for kind, found in best.items():
        cpu, floor, most = found["cpu_s"], *GOALS.get(kind, ("", 0.0))
        figure, goal, mark = f"{cpu * 1e6:.1f} µs CPU", "", ""
        if floor in best:
            cpu /= best[floor]["cpu_s"]
            figure, goal = f"{figure} = {cpu:.2f} × the relay", f"≤ {most} ×"
        elif most and not floor:
            cpu, goal = cpu * 1e6, f"≤ {most} µs"
        if goal:
            mark = "met" if cpu <= most else "MISSED"
        print(f"| {names[kind]} | {figure} | {goal} | {mark} |")
        if "post_s" in found:
            figure = f"{found['rate']:.0f} a second; POST {found['post_s'] * 1e3:.1f} ms with one client"
            get = f", GET {found['get_s'] * 1e3:.1f} ms" if "get_s" in found else ""
            print(f"| … 8 clients | {figure}{get} | | |")


if __name__ == "__main__":
    main()
