#!/usr/bin/env python3
"""A fake OpenAI-compatible chat-completions server, for measuring what stands in front of it.

    python fake_model.py [--host 127.0.0.1] [--port 0] [--port-file F] [--until-eof]

It prints `ready PORT` once it listens. Standard library only; uvloop and orjson are used if they are
installed (run.py installs them for it). Loopback only: it refuses to bind anything else.

What it answers is written in the model's name:

    steps-N[-tok-T][-delay-Dms]        (T defaults to 1, D to 0)

The same words in square brackets in the last user message, `[steps-2-tok-3]`, are obeyed instead of the
model's name (a runner warms up its own objects that way, before what is measured).

It counts the tool results that came after the last user message. While fewer than N it answers with
one tool call, add({"a": k, "b": 1}) where k is that count; then with a final text of T tokens, the next
of eight words. Streaming sends one SSE chunk a token (a tool call is 5 chunks: id and name, three pieces of
arguments, finish_reason). Without a delay a whole response is one write; with `-delay-D ms` each chunk
is a write of its own, D ms after the one before (by deadlines, so it does not drift).

Other addresses: GET /stats (counters as JSON), POST /reset (zeroes them), GET /v1/models.

Where the request offers a tool named final_answer (smolagents), the final text is a call of that tool,
T chunks of arguments long.

It also checks what it is sent: `bad_results` counts requests whose newest tool result does not hold
the sum that was asked for, so that a runner whose tool was not really run is found out.
"""

import argparse
import asyncio
import contextlib
import functools
import os
import re
import sys

try:
    from orjson import dumps, loads
except ImportError:
    from json import dumps as _dumps
    from json import loads

    def dumps(o):
        return _dumps(o, separators=(",", ":")).encode()


MODEL = re.compile(r"steps-(\d+)(?:-tok-(\d+))?(?:-delay-(\d+)ms)?")
OVERRIDE = re.compile(r"\[(steps-[\w-]+)\]")
UID = b"@@@@uid@@@@@"  # 12 bytes, replaced in a response by its number: every response has its own ids
WORDS = [
    w + " " for w in ["lorem", "ipsum", "dolor", "augue", "justo", "massa", "nulla", "porta"]
]  # litellm refuses 100 equal chunks


class Stats:
    def __init__(self):
        self.reset()

    def reset(self):
        self.requests = self.streams = self.tool_calls = self.finals = 0
        self.bytes_in = self.bytes_out = self.last_body = self.max_body = 0
        self.bad_results = self.bad_requests = self.messages_in = 0
        self.connections = 0


STATS = Stats()
SERIAL = 0


@functools.lru_cache(64)
def script(model):
    m = MODEL.search(model)
    if not m:
        return None
    return int(m[1]), int(m[2] or 1), int(m[3] or 0) / 1000


def text(tokens):
    return "".join(WORDS[i % 8] for i in range(tokens))


def _frame(obj):
    """One SSE event as one HTTP chunk."""
    data = b"data: " + (obj if isinstance(obj, bytes) else dumps(obj)) + b"\n\n"
    return b"%x\r\n%s\r\n" % (len(data), data)


def _usage(prompt, completion):
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


@functools.lru_cache(4096)
def stream_chunks(model, k, tokens, usage, by_tool=False):
    """The response's chunks, serialised; k is the tool call's number, or None for the final text."""
    uid = UID.decode()

    def chunk(delta, finish=None):
        o = {
            "id": "chatcmpl-" + uid,
            "object": "chat.completion.chunk",
            "created": 1700000000,
            "model": model,
            "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
        }
        if usage:
            o["usage"] = None
        return _frame(o)

    def args(piece):
        return chunk({"tool_calls": [{"index": 0, "function": {"arguments": piece}}]})

    def call(name):
        return chunk(
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {"index": 0, "id": "call_" + uid, "type": "function", "function": {"name": name, "arguments": ""}}
                ],
            }
        )

    if k is not None:
        out = [call("add"), args('{"a":'), args(str(k)), args(',"b":1}'), chunk({}, "tool_calls")]
        n = 5
    elif by_tool:
        pieces = [args(w) for w in WORDS]
        out = [
            call("final_answer"),
            args('{"answer":"'),
            *(pieces[i % 8] for i in range(tokens)),
            args('"}'),
            chunk({}, "tool_calls"),
        ]
        n = tokens
    else:
        pieces = [chunk({"content": w}) for w in WORDS]
        out = [
            chunk({"role": "assistant", "content": WORDS[0]}),
            *(pieces[i % 8] for i in range(1, tokens)),
            chunk({}, "stop"),
        ]
        n = tokens
    tail = b""
    if usage:
        tail += _frame(
            {
                "id": "chatcmpl-" + uid,
                "object": "chat.completion.chunk",
                "created": 1700000000,
                "model": model,
                "choices": [],
                "usage": _usage(100, n),
            }
        )
    tail += _frame(b"[DONE]") + b"0\r\n\r\n"
    out[-1] += tail
    return out


@functools.lru_cache(4096)
def stream_blob(model, k, tokens, usage, by_tool=False):
    return SSE_HEAD + b"".join(stream_chunks(model, k, tokens, usage, by_tool))


@functools.lru_cache(4096)
def plain_blob(model, k, tokens, by_tool=False):
    uid = UID.decode()
    if k is not None or by_tool:
        name, args, n = (
            ("add", '{"a":%d,"b":1}' % k, 5)
            if k is not None
            else ("final_answer", '{"answer":"%s"}' % text(tokens), tokens)
        )
        msg = {
            "role": "assistant",
            "content": None,
            "refusal": None,
            "tool_calls": [{"id": "call_" + uid, "type": "function", "function": {"name": name, "arguments": args}}],
        }
        finish = "tool_calls"
    else:
        msg, finish, n = {"role": "assistant", "content": text(tokens), "refusal": None}, "stop", tokens
    return _json_response(
        {
            "id": "chatcmpl-" + uid,
            "object": "chat.completion",
            "created": 1700000000,
            "model": model,
            "usage": _usage(100, n),
            "choices": [{"index": 0, "message": msg, "logprobs": None, "finish_reason": finish}],
        }
    )


def _json_response(obj, status=b"200 OK"):
    body = dumps(obj)
    return (b"HTTP/1.1 %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % (status, len(body))) + body


SSE_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"cache-control: no-cache\r\ntransfer-encoding: chunked\r\n\r\n"
)


def _text(content):
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(p.get("text", "") if isinstance(p, dict) else str(p) for p in content)
    return "" if content is None else str(content)


def count_results(messages):
    """Tool results after the last user message, whether the newest holds the right sum, and that message.
    smolagents sends a tool's result as a user message that starts with 'Observation:'."""
    n, newest, user = 0, None, ""
    for m in reversed(messages):
        role = m.get("role")
        if role == "tool":
            pass
        elif role == "user":
            user = _text(m.get("content"))
            if not user.startswith("Observation:"):
                break
        else:
            continue
        n += 1
        if newest is None:
            newest = _text(m.get("content"))
    ok = True if newest is None else re.search(r"(?<!\d)%d(?!\d)" % n, newest) is not None
    return n, ok, user


class Http(asyncio.Protocol):
    __slots__ = ("body_at", "buf", "head", "loop", "need", "transport")

    def __init__(self, loop):
        self.loop = loop
        self.buf = b""
        self.need = -1  # length of head + body of the request under way, once known

    def connection_made(self, transport):
        self.transport = transport
        STATS.connections += 1

    def connection_lost(self, exc):
        self.transport = None

    def data_received(self, data):
        buf = self.buf = self.buf + data if self.buf else data
        while True:
            if self.need < 0:
                end = buf.find(b"\r\n\r\n")
                if end < 0:
                    return
                head = buf[:end].lower()
                self.head = head
                i = head.find(b"\r\ncontent-length:")
                if i >= 0:
                    j = head.find(b"\r\n", i + 2)
                    length = int(head[i + 17 : j if j >= 0 else None])
                elif b"\r\ntransfer-encoding: chunked" in head:
                    self.transport.write(
                        _json_response({"error": {"message": "chunked request"}}, b"411 Length Required")
                    )
                    STATS.bad_requests += 1
                    self.transport.close()
                    return
                else:
                    length = 0
                self.need = end + 4 + length
                self.body_at = end + 4
            if len(buf) < self.need:
                return
            body = buf[self.body_at : self.need]
            buf = self.buf = buf[self.need :]
            self.need = -1
            self.handle(self.head, body)
            if not buf or self.transport is None:
                return

    def handle(self, head, body):
        if head.startswith(b"post /v1/chat/completions"):
            self.chat(body)
        elif head.startswith(b"get /stats"):
            self.transport.write(_json_response(dict(vars(STATS).items())))
        elif head.startswith(b"post /reset"):
            STATS.reset()
            self.transport.write(_json_response({"ok": True}))
        elif head.startswith(b"get /v1/models"):
            self.transport.write(_json_response({"object": "list", "data": []}))
        else:
            STATS.bad_requests += 1
            self.transport.write(_json_response({"error": {"message": "no such address"}}, b"404 Not Found"))

    def chat(self, body):
        global SERIAL
        s = STATS
        try:
            req = loads(body)
            model, messages = req["model"], req["messages"]
            done, ok, user = count_results(messages)
            override = OVERRIDE.search(user)
            steps, tokens, delay = script(override[1] if override else model)
        except Exception as e:
            s.bad_requests += 1
            self.transport.write(_json_response({"error": {"message": repr(e)}}, b"400 Bad Request"))
            return
        s.requests += 1
        s.messages_in += len(messages)
        s.bytes_in += len(body)
        s.last_body = len(body)
        s.max_body = max(s.max_body, len(body))
        if not ok:
            s.bad_results += 1
        if done < steps:
            k = done
            s.tool_calls += 1
        else:
            k = None
            s.finals += 1
        SERIAL += 1
        uid = b"%012d" % SERIAL
        by_tool = k is None and any(t.get("function", {}).get("name") == "final_answer" for t in req.get("tools") or ())
        if not req.get("stream"):
            out = plain_blob(model, k, tokens, by_tool).replace(UID, uid)
            s.bytes_out += len(out)
            if delay:
                self.loop.call_later(delay * (5 if k is not None else tokens), self.write, out)
            else:
                self.transport.write(out)
            return
        s.streams += 1
        usage = bool((req.get("stream_options") or {}).get("include_usage"))
        if not delay:
            out = stream_blob(model, k, tokens, usage, by_tool).replace(UID, uid)
            s.bytes_out += len(out)
            self.transport.write(out)
            return
        self.transport.write(SSE_HEAD)
        self.pace(stream_chunks(model, k, tokens, usage, by_tool), 0, uid, self.loop.time(), delay)

    def write(self, data):
        if self.transport is not None:
            self.transport.write(data)

    def pace(self, chunks, i, uid, t0, delay):
        if self.transport is None or self.transport.is_closing():
            return
        if i:
            self.transport.write(chunks[i - 1].replace(UID, uid))
        if i < len(chunks):
            self.loop.call_at(t0 + (i + 1) * delay, self.pace, chunks, i + 1, uid, t0, delay)


async def serve(host, port, port_file, until_eof):
    loop = asyncio.get_running_loop()
    if until_eof:  # who started it is gone
        loop.add_reader(0, lambda: os.read(0, 1) or os._exit(0))
    server = await loop.create_server(lambda: Http(loop), host, port, backlog=4096)
    port = server.sockets[0].getsockname()[1]
    if port_file:
        with open(port_file, "w") as f:
            f.write(str(port))
    print("ready", port, flush=True)
    await server.serve_forever()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--host", default="127.0.0.1")
    p.add_argument("--port", type=int, default=0)
    p.add_argument("--port-file")
    p.add_argument("--until-eof", action="store_true", help="end when standard input does")
    a = p.parse_args()
    if a.host not in ("127.0.0.1", "::1", "localhost"):
        sys.exit("loopback only")
    try:
        import uvloop

        run = uvloop.run
    except ImportError:
        run = asyncio.run
    with contextlib.suppress(KeyboardInterrupt):
        run(serve(a.host, a.port, a.port_file, a.until_eof))


if __name__ == "__main__":
    main()
