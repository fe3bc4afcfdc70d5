"""A strict fake of Ollama's chat API: lines of JSON, whole calls, and a refusal of prompts that do not fit."""

from __future__ import annotations

import json
from typing import Any

from tests.kit.fakes.server import Strict, pieces, unknown, words
from treadle.messages import Reply

FIELDS = words("model messages stream format keep_alive tools options think truncate shift logprobs top_logprobs")
OPTIONS = words(
    """num_ctx num_predict temperature top_p top_k min_p typical_p seed stop num_keep num_gpu repeat_penalty
    presence_penalty frequency_penalty"""
)
MESSAGE = words("role content thinking images tool_calls tool_name tool_call_id")


class FakeOllama(Strict):
    """Ollama. `parameters` is what a Modelfile would set, `context` what the model can do."""

    path = "/api/chat"
    prefix = ""
    parameters = ""
    context = 131_072

    def is_authorised(self, headers: dict[str, str]) -> bool:
        return True

    def refusal(self, code: int, message: str) -> bytes:
        return json.dumps({"error": message}).encode()

    def document(self, method: str, path: str) -> Any:
        match path:
            case "/api/tags":
                return {"models": [{"name": "fake:1b"}, {"name": "other"}]}
            case "/api/show":
                return {"parameters": self.parameters, "model_info": {"fake.context_length": self.context}}
            case _:
                return None

    def problems(self, body: dict[str, Any]) -> list[str]:
        wrong = unknown("request", body, FIELDS, {"model", "messages"})
        wrong += unknown("options", body.get("options", {}), OPTIONS)
        waiting = 0
        for place, message in enumerate(body["messages"]):
            wrong += unknown(f"messages.{place}", message, MESSAGE, {"role"})
            role = message["role"]
            if (role == "tool") != (waiting > 0):
                wrong.append(f"messages.{place}: results must follow their calls")
            waiting = waiting - 1 if role == "tool" else len(message.get("tool_calls", ()))
            for call in message.get("tool_calls", ()):
                if not isinstance(call["function"]["arguments"], dict):
                    wrong.append(f"messages.{place}: arguments must be an object")
        if waiting:
            wrong.append("calls without results")
        size = sum(len(message["content"]) for message in body["messages"]) // 4
        if body.get("truncate") is False and size > body.get("options", {}).get("num_ctx", 4096):
            wrong.append("the input length exceeds the context length")
        return wrong

    def render(self, reply: Reply, body: dict[str, Any]) -> bytes:
        lines: list[dict[str, Any]] = [{"thinking": piece, "content": ""} for piece in pieces(reply.reasoning)]
        lines += [{"content": piece} for piece in pieces(reply.text)]
        for call in reply.calls:
            function = {"name": call.tool, "arguments": json.loads(call.arguments)}
            lines.append({"content": "", "tool_calls": [{"function": function}]})
        out = [{"model": body["model"], "message": {"role": "assistant", **line}, "done": False} for line in lines]
        end = {"done": True, "done_reason": "length" if reply.finish == "length" else "stop"}
        counts = {"prompt_eval_count": reply.usage.input_tokens or 11, "eval_count": reply.usage.output_tokens or 7}
        out.append({"model": body["model"], "message": {"role": "assistant", "content": ""}, **end, **counts})
        return "".join(json.dumps(line) + "\n" for line in out).encode()
