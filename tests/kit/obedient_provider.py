"""A provider that does what the user's message says, for tests in which the model is a real server on a socket.

`use TOOL {arguments}` calls a tool, `say: TEXT` answers with this text. Otherwise it says how many messages it read.
"""

import itertools
import json
import re
from typing import Any

from tests.kit.fakes.chat import StrictChat
from treadle.messages import Call, Reply, Usage

COMMAND = "echo treadle-was-here"
DEFAULT_ARGUMENTS: dict[str, dict[str, Any]] = {
    "get_weather": {"city": "Paris"},
    "exec_command": {"cmd": COMMAND},
    "Bash": {"command": COMMAND, "description": "Say it"},
    "bash": {"command": COMMAND, "description": "Say it"},
    "shell": {"command": COMMAND},
    "calculate": {"expression": "6*7"},
}
_ORDER = re.compile(r"\buse (\w+)(?: (\{[^\n]*\}))?")
_numbers = itertools.count(1)


class ObedientProvider(StrictChat):
    """Strict about every request, as the real service is. It also embeds texts."""

    def __init__(self) -> None:
        super().__init__(answer_request)

    def document(self, method: str, path: str) -> Any:
        if path == "/v1/embeddings":
            count = len(json.loads(self.seen[-1].raw)["input"])
            data = [{"object": "embedding", "index": place, "embedding": [0.5, 0.25]} for place in range(count)]
            return {"object": "list", "data": data, "model": "script", "usage": {"prompt_tokens": 3, "total_tokens": 3}}
        return super().document(method, path)


def answer_request(body: dict[str, Any]) -> Reply:
    """Answer one request: with a call, with the results of the last calls, or with a text."""
    messages: list[dict[str, Any]] = body["messages"]
    usage = Usage(input_tokens=20, output_tokens=5)
    results = _list_new_results(messages)
    texts = [_read_text(message) for message in messages if message["role"] == "user"]
    if results and "again and again" not in texts[-1]:
        return Reply(text=f"The tool said: {' and '.join(results)}", usage=usage)
    offered = {tool["function"]["name"] for tool in body.get("tools") or ()}
    orders = [(name, given) for name, given in _ORDER.findall(texts[-1]) if name in offered]
    if orders:
        calls = tuple(
            Call(f"call_{next(_numbers)}", name, given or json.dumps(DEFAULT_ARGUMENTS.get(name, {})))
            for name, given in orders
        )
        return Reply(reasoning="A tool knows this.", calls=calls, finish="calls", usage=usage)
    _, said, text = texts[-1].partition("say: ")
    return Reply(text=text if said else f"I have read {len(texts)} messages.", usage=usage)


def _list_new_results(messages: list[dict[str, Any]]) -> list[str]:
    """The results since the model's last message. Images of a result follow as a message of the user."""
    places = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
    last = messages[places[-1] + 1 :] if places else []
    return [_read_text(message).strip()[:300] for message in last if message["role"] == "tool"]


def _read_text(message: dict[str, Any]) -> str:
    content = message["content"] or ""
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content if part["type"] == "text")
