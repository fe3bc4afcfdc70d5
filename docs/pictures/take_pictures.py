"""Take the pictures of the web page in this folder: a real server, real tools, a scripted model, a real Chromium.

Run it after a change of how the page looks: `.venv/bin/python docs/pictures/take_pictures.py [NAME…]`. With
`--serve` it only serves the sessions, and prints the address and the token.
"""

import argparse
import asyncio
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

from palette_png import reduce_colours  # noqa: E402
from tests.kit.server import OWNER, Client, listen  # noqa: E402

from treadle import Grant, Limits, Runtime  # noqa: E402
from treadle.app.compose import McpStatus  # noqa: E402
from treadle.app.workspace_knowledge import AgentOptions, WorkspaceKnowledge  # noqa: E402
from treadle.engine.setup import Clock  # noqa: E402
from treadle.errors import ModelError  # noqa: E402
from treadle.events import ReasoningDelta, TextDelta  # noqa: E402
from treadle.log.sqlite import SqliteLog  # noqa: E402
from treadle.messages import Call, ModelMessage, Reply, Request, Usage, UserMessage, render_parts  # noqa: E402
from treadle.models.base import ModelEvent  # noqa: E402
from treadle.permissions.saved_rules import RuleBook, save_rule  # noqa: E402
from treadle.server.app import ServerApp, create_app  # noqa: E402
from treadle.server.config import ServerConfig  # noqa: E402
from treadle.server.tokens import Token  # noqa: E402
from treadle.testing import call  # noqa: E402
from treadle.tools.builtin import build_default_tools  # noqa: E402

FOLDER = Path(__file__).parent
BROWSER = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
Size = dict[str, int]
WIDE: Size = {"width": 1440, "height": 900}
NARROW: Size = {"width": 390, "height": 844}
SETTLING_MS = 900

SESSION_PY = '''"""An upload, and where its bytes are kept."""

CHUNK = 8 * 1024 * 1024


class Upload:
    def __init__(self, bucket, key):
        self.bucket, self.key = bucket, key
        self.parts = {}

    def put(self, body):
        self.bucket.put(self.key, body)

    def put_part(self, number, data):
        self.parts[number] = self.bucket.put_part(self.key, number, data)
'''
TEST_PY = """import time


def test_first_part_is_kept():
    assert True


def test_repeat_is_free():
    assert True
"""
RELEASE_NOTES = """---
name: release-notes
description: How this team writes release notes.
---
One sentence for each change, in the present tense.
"""
SLOW_TEST = """import time
print("collected 6 items")
for name in ("test_first_part_is_kept", "test_repeat_is_free", "test_drop_after_part_3"):
    print(f"tests/test_resume.py::{name} ", "PASSED" if name != "test_drop_after_part_3" else "", flush=True)
    time.sleep(0.2)
time.sleep(600)
"""
UPLOADS_INTRO = """The whole body is sent as one object, so there is nothing to go on from. I see two ways:

| Way | What is kept | Extra requests |
|---|---|---:|
| Parts in the bucket | One object per 8 MB, joined at the end | 1 in 8 MB |
| Offset in the database | A row per upload, bytes on local disk | none |

Parts survive a restart of any machine, so I take them. `put_part` becomes safe to repeat:"""
SEARCH_ANSWER = """The search page is slow for one reason: it reads **every parcel** to count them.

1. `count_parcels` runs `SELECT *` and counts in Python, 1.4 s of the 1.6 s.
2. The index on `(owner, created_at)` is not used, because the query sorts by `lower(name)`.

```python
def count_parcels(db, owner):
    # One number from the database instead of 180 000 rows.
    return db.scalar("select count(*) from parcel where owner = :owner", owner=owner)
```

With this change the page needs 0.2 s. I did not touch the sort: users would see another order."""
OLD_PUT = "    def put(self, body):\n        self.bucket.put(self.key, body)\n"
NEW_PUT = """    def put(self, body):
        for number, data in enumerate(split(body, CHUNK), 1):
            if number not in self.parts:
                self.put_part(number, data)
        self.bucket.join(self.key, self.parts)
"""
REFUSED = ModelError("the key was refused (401); set OPENAI_API_KEY on the server", kind="auth")
Step = Any
SCRIPTS: dict[str, list[Step]] = {
    "Large uploads break": [
        ("Where is the state of an upload kept, and who may see it?", call("list_files", path=".")),
        [call("read_file", path="uploads/session.py"), call("read_file", path="tests/test_resume.py"),
         call("search_files", pattern="put_part"), call("shell", command="git log --oneline | head -3")],
        [UPLOADS_INTRO,
         call("todo", items=[
             {"text": "Find where uploads are cut", "status": "done"},
             {"text": "Choose how parts are stored", "status": "done"},
             {"text": "Store finished parts", "status": "doing"},
             "Test a cut after the third part", "Say it in the changelog"])],
        [call("edit_file", path="uploads/session.py", old=OLD_PUT, new=NEW_PUT)],
        [call("delegate", task="Read the limits of multipart uploads and name them.")],
        ["The parts are stored under their number. Now the test: it cuts the connection after the third part and looks "
         "at which requests come next.", call("shell", command="python3 slow_tests.py")],
    ],
    "Read the limits": ["A part has at least 5 MB, and an upload at most 10 000 parts."],
    "Publish the 2.4 changelog": [
        [call("read_file", path="CHANGELOG.md")],
        ["The changelog of 2.4 is complete. I push the branch, so that the release job can take it.",
         call("shell", command="git add CHANGELOG.md && git push -u origin changelog-2.4")],
    ],
    "Rename the billing tables": [
        [call("ask_user", question="Which name should the table get?", options=["invoices", "bills", "statements"])],
    ],
    "Why is the search page slow?": [[call("read_file", path="search.py")], [SEARCH_ANSWER]],
    "Move images to the new bucket": [REFUSED],
    "Which parcels have no owner?": ["None. I checked all 180 000 parcels of the test database."],
    "Give the quota test a fixed clock": [
        [call("read_file", path="tests/test_resume.py")],
        ["The test reads the time twice, and fails when a second passes in between. It uses a fixed clock now."]],
}  # fmt: skip


class DemoModel:
    """Answers by the first message of the conversation, with pauses in between as a model has them."""

    name, window = "sonnet-5", 200_000

    async def stream(self, request: Request) -> AsyncGenerator[ModelEvent, None]:
        first = next(render_parts(one.parts) for one in request.messages if isinstance(one, UserMessage))
        turn = sum(isinstance(one, ModelMessage) for one in request.messages)
        script = next(script for start, script in SCRIPTS.items() if start in first)
        step = script[turn] if turn < len(script) else "Done."
        if isinstance(step, Exception):
            raise step
        reasoning, pieces = "", step
        if isinstance(step, tuple):
            reasoning, *pieces = step
        pieces = [pieces] if isinstance(pieces, str) else list(pieces)
        text = "".join(piece for piece in pieces if isinstance(piece, str))
        calls = tuple(piece for piece in pieces if isinstance(piece, Call))
        await asyncio.sleep(0.15)
        if reasoning:
            yield ReasoningDelta(text=reasoning)
            await asyncio.sleep(0.3)
        for start in range(0, len(text), 40):
            yield TextDelta(text=text[start : start + 40])
            await asyncio.sleep(0.005)
        used = Usage(
            9000 + 2600 * turn, 120 + len(text) // 3, (8600 + 2300 * turn) * bool(turn), 40, 0.012 + 0.006 * turn
        )
        yield Reply(text, reasoning, calls, "calls" if calls else "stop", used, self.name)

    async def close(self) -> None:
        """Nothing is open."""


@contextmanager
def make_folder() -> Iterator[Path]:
    """Make a folder whose path looks well in a picture, and remove it at the end."""
    folder = Path(tempfile.gettempdir(), "code")
    folder.mkdir()  # an error if it is there: then it is somebody's
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def make_workspace(folder: Path) -> Path:
    """Make a small project with a git repository, for the tools to work in."""
    work = folder / "parcel-api"
    files = {
        "uploads/session.py": SESSION_PY,
        "tests/test_resume.py": TEST_PY,
        "search.py": "def count_parcels(db, owner):\n    return len(db.all('select * from parcel'))\n",
        ".treadle/skills/release-notes/SKILL.md": RELEASE_NOTES,
        "CHANGELOG.md": "# Changelog\n\n## 2.4\n\n- Uploads go on where they were cut.\n",
        "slow_tests.py": SLOW_TEST,
    }
    for name, text in files.items():
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        (work / name).write_text(text)
    commit = ["-c", "user.name=A", "-c", "user.email=a@example.org", "commit", "-qm", "Start"]
    for arguments in (["init", "-q", "-b", "changelog-2.4"], ["add", "."], commit):
        subprocess.run(["git", *arguments], cwd=work, check=True)
    return work


# How long ago the sessions happened, in seconds.
AGES = {"Give": 26 * 3600, "Which": 5 * 3600, "Move": 2 * 3600, "Why": 3600, "Rename": 1080, "Publish": 130, "Large": 0}


class ShiftedClock(Clock):
    """The clock of the store and of the agents. The sessions are written one after the other, as if it were earlier."""

    def __init__(self) -> None:
        self.behind = 0.0

    def now(self) -> float:
        return time.time() - self.behind


async def fill(client: Client, clock: ShiftedClock) -> dict[str, str]:
    """Create the sessions and wait until each has the state that its picture shows. Returns ids by the first words."""
    ids: dict[str, str] = {}
    endings = {"Large": "output_delta", "Publish": "approval_requested", "Rename": "input_requested"}
    for start in reversed(SCRIPTS):
        if start == "Read the limits":
            continue
        title = "Resume interrupted uploads" if start.startswith("Large") else start
        message = (
            f"{start} when the line drops. They should go on where they were cut." if start[:5] == "Large" else start
        )
        clock.behind = AGES[start.split()[0]]
        ids[start.split()[0]] = session = await client.session(name=title)
        await client.json("POST", f"/v1/sessions/{session}/messages?wait=0", {"content": message})
        async with asyncio.timeout(20):
            await client.wait_for(session, endings.get(start.split()[0], "run_finished"))
    running = ids["Large"]
    for content, mode in (
        ("Keep the old endpoint working for one release.", "queue"),
        ("Then write the entry for the changelog.", "follow_up"),
    ):
        path = f"/v1/sessions/{running}/messages?wait=0"
        await client.json("POST", path, {"content": content, "mode": mode})
    await client.json("PATCH", f"/v1/sessions/{ids['Why']}", {"pinned": True})
    for text in ("Tests run with `uv run pytest -q`", "Mira wants short commit messages"):
        await client.json("POST", "/v1/memory", {"content": text}, 201)
    return ids


# The main pages. Each is shown wide and narrow, light and dark.
MAIN = ("session", "approval", "inbox", "list", "changes", "time", "past", "compare", "settings", "new", "login")


def list_addresses(ids: dict[str, str]) -> dict[str, str]:
    """The address of each picture, by its name."""
    return {
        "session": f"/s/{ids['Large']}",
        "answer": f"/s/{ids['Why']}",
        "approval": f"/s/{ids['Publish']}",
        "question": f"/s/{ids['Rename']}",
        "inbox": "/inbox",
        "list": "/",
        "time": f"/s/{ids['Large']}/time",
        "past": f"/s/{ids['Large']}/at/22",
        "changes": f"/s/{ids['Large']}/changes",
        "compare": f"/compare/{ids['Large']}/{ids['Why']}",
        "failed": f"/s/{ids['Move']}",
        "palette": f"/s/{ids['Why']}",
        "new": "/new",
        "settings": "/settings/models",
        "login": "/",
    }


async def prepare(page: Any, name: str) -> None:
    """Do what a picture needs after its page was opened, and wait until nothing moves any more."""
    await page.wait_for_load_state("networkidle" if name == "login" else "load")
    await page.evaluate("document.fonts.ready")
    await page.wait_for_timeout(SETTLING_MS)
    if name in ("approval", "inbox"):
        await page.get_by_role("button", name=re.compile("^(Allow once|I do not)")).first.wait_for()
        await page.wait_for_timeout(SETTLING_MS)
    if name == "palette":
        await page.keyboard.press("Control+k")
        await page.keyboard.type("upload")
        await page.locator(".pal mark").first.wait_for()
    await page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


async def take(base: str, ids: dict[str, str], wanted: Sequence[tuple[str, Size, str]], out: Path) -> None:
    """Take these pictures."""
    from playwright.async_api import async_playwright

    addresses = list_addresses(ids)
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=shutil.which("chromium"), args=BROWSER)
        blank = await browser.new_page()
        for name, size, scheme in wanted:
            is_narrow = size == NARROW
            context = await browser.new_context(
                base_url=base, viewport=size, color_scheme=scheme, is_mobile=is_narrow, has_touch=is_narrow,
                reduced_motion="reduce",
            )  # fmt: skip
            if name != "login":
                await context.request.post("/login", data={"token": OWNER.value}, headers={"origin": base})
            page = await context.new_page()
            page.on("console", lambda message: message.type == "error" and print("console:", message.text))
            await page.goto(addresses[name])
            await prepare(page, name)
            file = out / f"{name}-{'phone' if is_narrow else 'wide'}-{scheme}.png"
            file.write_bytes(await reduce_colours(blank, await page.screenshot()))
            print(f"{file} {file.stat().st_size // 1024} kB")
            await context.close()
        await browser.close()


def build_app(folder: Path, work: Path, clock: ShiftedClock) -> ServerApp:
    """Build a server that has something in every section of its settings."""
    knowledge = WorkspaceKnowledge(work, folder / "own")
    skill = (
        "---\nname: migrations\ndescription: How to rename a table without a lock.\n---\nAdd the new name as a view.\n"
    )
    knowledge.proposals.add("migrations", skill, "You explained it in two sessions")
    for pattern, decision in (("shell(uv run *)", "allow"), ("shell(git push --force *)", "deny")):
        save_rule(folder / "own", pattern, decision, work, by="owner")
    tools = build_default_tools(kept=folder / "kept")
    grant = Grant(tier="sandbox", ask=("shell(git push *)",))
    agents = knowledge.build_all_agents(AgentOptions(DemoModel(), tools, grant, limits=Limits(cost=2.0)))
    for agent in agents:
        agent.clock = clock
    servers = (
        McpStatus("issues", "up", "", ("issues__find", "issues__read", "issues__comment")),
        McpStatus("postgres", "down", "It ended with code 1: could not connect to 127.0.0.1:5432", ()),
    )
    config = ServerConfig(
        tokens=(OWNER, Token("dashboard", "secret-of-the-dashboard", frozenset(("view",)))),
        roots=[work],
        models=("openai:gpt-5-mini", "local"),
        rules=RuleBook(folder / "own", (work,)),
        list_mcp=lambda: servers,
    )
    return create_app(Runtime(SqliteLog(folder / "store.db", clock=clock.now), agents), config)


async def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", help="the pages to take, each in four ways; those of the docs if left out")
    parser.add_argument("--out", type=Path, default=FOLDER, help="the folder for the pictures")
    parser.add_argument("--serve", action="store_true", help="only serve the sessions")
    options = parser.parse_args()
    with make_folder() as folder:
        work, clock = make_workspace(folder), ShiftedClock()
        async with listen(build_app(folder, work, clock)) as base, Client(base) as client:
            ids = await fill(client, clock)
            if options.serve:
                print(base, OWNER.value, ids, flush=True)
                await asyncio.Event().wait()
            options.out.mkdir(parents=True, exist_ok=True)
            names = options.names or MAIN
            wanted = [(one, size, scheme) for one in names for size in (WIDE, NARROW) for scheme in ("light", "dark")]
            await take(base, ids, wanted, options.out)
            await client.json("POST", f"/v1/sessions/{ids['Large']}/cancel", {})


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        asyncio.run(main())
