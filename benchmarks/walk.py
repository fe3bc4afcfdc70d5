#!/usr/bin/env python3
"""The way of one message through the code: which files of src/treadle run, in order of their first execution.

    python benchmarks/walk.py [--no-list]

One run with one call of `read_file` is followed twice: `treadle run` and `POST /v1/sessions/{id}/messages` against
`treadle serve`. Each is a real process that talks to a fake model on loopback.

- The start: `treadle run` enters `Session.run` with the message; the server is called with the request.
- The end: `treadle run` has ended; the server has sent the answer, has named the session, and gets the signal to stop.
- A file counts when one of its functions works between the two: it is entered, or it is resumed after an `await` and
  calls something. A coroutine that only waits for another one does not count, although each step of the event loop
  passes through it (`serve` while the server runs, say). What runs while a module is imported does not count either.
- What the server does from time to time, such as looking for abandoned sessions, does not count either: the recorder
  leaves out the tasks that ran before the request came.

Each line is the file and the first function that worked.
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent / "src"
SECONDS = 60
FOLLOW_UP_SECONDS = 5
REQUESTS = 3
"""What the server asks the model: two turns, and a name for the session."""

# Python imports this module by itself at start. The flag of the RESUME instruction tells entering from resuming. A
# function that is resumed works as soon as it enters another function or calls one that is written in C.
RECORDER = """\
import asyncio, atexit, json, os, sys, threading

ROOT, OUT, SURFACE = (os.environ[f"WALK_{name}"] for name in ("ROOT", "OUT", "SURFACE"))
OPTIMIZED = 1  # set for functions, not for the bodies of modules and classes
walk, resumed, started, stopped = {}, set(), False, False
earlier_tasks = set()

def is_start(frame, code):
    if SURFACE == "run":
        return code.co_filename == ROOT + "session.py" and code.co_qualname == "Session.run"
    is_request = code.co_name == "run_asgi" and "uvicorn" in code.co_filename
    return is_request and frame.f_locals["self"].scope["path"].endswith("/messages")

def is_importing(frame):
    while frame is not None:
        if frame.f_code.co_name == "_call_with_frames_removed":
            return True
        frame = frame.f_back
    return False

def is_earlier_task():
    loop = asyncio._get_running_loop()
    return loop is not None and asyncio.current_task(loop) in earlier_tasks

def record(frame, event, argument):
    global started, stopped
    code = frame.f_code
    if event == "call":
        if not started and is_start(frame, code):
            started = True
            if SURFACE == "serve":
                earlier_tasks.update(asyncio.all_tasks() - {asyncio.current_task()})
        stopped = stopped or code.co_name == "handle_exit"
    if not started or stopped or is_earlier_task():
        return
    if event == "call" and code.co_code[frame.f_lasti + 1] & 3:
        resumed.add(code)
    elif event == "call":
        add_step(frame)
        if frame.f_back is not None and frame.f_back.f_code in resumed:
            add_step(frame.f_back)
    elif event == "c_call" and code in resumed:
        add_step(frame)

def add_step(frame):
    code = frame.f_code
    path = code.co_filename
    if path in walk or not path.startswith(ROOT) or not code.co_flags & OPTIMIZED or is_importing(frame):
        return
    walk[path] = {"path": path[len(ROOT):], "function": code.co_qualname}

def save():
    sys.setprofile(None)
    if started:
        with open(OUT, "w") as file:
            json.dump(list(walk.values()), file)

atexit.register(save)
threading.setprofile(record)
sys.setprofile(record)
"""


class FakeModel(BaseHTTPRequestHandler):
    """A chat-completions server: asks once for `read_file`, then answers."""

    protocol_version = "HTTP/1.1"
    answered = 0

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if body.get("tools") and body["messages"][-1]["role"] != "tool":
            function = {"name": "read_file", "arguments": json.dumps({"path": "notes.txt"})}
            call = {"index": 0, "id": "call_1", "type": "function", "function": function}
            self._stream({"role": "assistant", "content": None, "tool_calls": [call]}, "tool_calls")
        else:
            self._stream({"role": "assistant", "content": "It says hello."}, "stop")
        FakeModel.answered += 1

    def _stream(self, delta, finish_reason):
        lines = []
        for choice in ({"delta": delta, "finish_reason": None}, {"delta": {}, "finish_reason": finish_reason}):
            chunk = {"id": "reply_1", "object": "chat.completion.chunk", "created": 1, "model": "fake"}
            lines.append(json.dumps({**chunk, "choices": [{"index": 0, **choice}]}))
        data = "".join(f"data: {line}\n\n" for line in (*lines, "[DONE]")).encode()
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        self.send_error(404)

    def log_message(self, *_):
        pass


def start_treadle(folder, surface, command):
    """Start a treadle command that records its walk, in a workspace with one file."""
    workspace, home = folder / "workspace", folder / "home"
    for made in (workspace, home):
        made.mkdir(parents=True)
    (workspace / "notes.txt").write_text("hello\n", "utf-8")
    (folder / "sitecustomize.py").write_text(RECORDER, "utf-8")
    env = {name: value for name, value in os.environ.items() if not name.startswith(("TREADLE", "XDG"))}
    env |= {"HOME": str(home), "PYTHONPATH": f"{folder}{os.pathsep}{SOURCE}"}
    env |= {"WALK_ROOT": f"{SOURCE / 'treadle'}/", "WALK_OUT": str(folder / "walk.json"), "WALK_SURFACE": surface}
    return subprocess.Popen(
        [sys.executable, "-m", "treadle", *command],
        cwd=workspace,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def walk_run(folder, options):
    """The walk of `treadle run`."""
    child = start_treadle(folder, "run", ["run", "What do my notes say?", *options])
    answer, notes = child.communicate(timeout=SECONDS)
    if child.returncode != 0 or "hello" not in answer:
        sys.exit(f"treadle run failed ({child.returncode}):\n{answer}{notes}")
    return json.loads((folder / "walk.json").read_text("utf-8"))


def walk_post(folder, options):
    """The walk of `POST messages`."""
    tokens = folder / "tokens.json"
    child = start_treadle(
        folder, "serve", ["serve", "--port", "0", "--allow-root", "--token-file", str(tokens), *options]
    )
    try:
        address = read_address(child)
        token = json.loads(tokens.read_text("utf-8"))[0]["value"]
        headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}

        def post(path, body):
            request = urllib.request.Request(address + path, json.dumps(body).encode(), headers)
            with urllib.request.urlopen(request, timeout=SECONDS) as response:
                return json.load(response)

        FakeModel.answered = 0
        session = post("/v1/sessions", {})["id"]
        answer = post(f"/v1/sessions/{session}/messages", {"content": "What do my notes say?"})
        if answer["outcome"]["status"] != "answered" or answer["outcome"]["calls"] != 1:
            sys.exit(f"POST messages failed: {answer}")
        deadline = time.monotonic() + FOLLOW_UP_SECONDS
        while FakeModel.answered < REQUESTS and time.monotonic() < deadline:
            time.sleep(0.05)
        child.send_signal(signal.SIGINT)
        child.communicate(timeout=SECONDS)
    finally:
        child.kill()
        child.wait()
    return json.loads((folder / "walk.json").read_text("utf-8"))


def read_address(child):
    """The server's address, from what it prints when it is ready."""
    lines = []
    for line in child.stderr:
        lines.append(line)
        if found := re.search(r"http://127\.0\.0\.1:\d+", line):
            return found[0]
    sys.exit(f"treadle serve did not start:\n{''.join(lines)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action=argparse.BooleanOptionalAction, default=True, help="print every file")
    args = parser.parse_args()
    model = ThreadingHTTPServer(("127.0.0.1", 0), FakeModel)
    threading.Thread(target=model.serve_forever, daemon=True).start()
    options = ["--yes", "--model", "fake", "--base-url", f"http://127.0.0.1:{model.server_port}/v1"]
    walks = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, walk in (("treadle run", walk_run), ("POST messages", walk_post)):
            walks[name] = walk(Path(folder) / walk.__name__, options)
    model.shutdown()
    if args.list:
        for name, steps in walks.items():
            print(f"{name}\n")
            for number, step in enumerate(steps, 1):
                print(f"{number:>3}  {step['path']:<32}{step['function']}")
            print()
    for name, steps in walks.items():
        print(f"{name}: {len(steps)} files")


if __name__ == "__main__":
    main()
