"""Command hooks: what a hook is told, what it may say, and what comes of one that fails."""

import asyncio
import json
import os
import re
import shutil
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.kit.sessions import PATIENCE
from tests.kit.terminal import wait_until
from treadle import TextPart
from treadle.app.command_hooks import build_command_hooks, read_verdict
from treadle.app.hook_process import HookOutput
from treadle.app.settings import load_settings
from treadle.app.workspace_hooks import forget_trust, read_workspace_hooks, trust_hooks
from treadle.engine.hook_result import HookCall, HookResult, HookSession
from treadle.engine.setup import MessageRefused, Middleware
from treadle.errors import BadInput
from treadle.events import CallFinished, RunFinished
from treadle.secrets.keyring import Keyring


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of its own, and a workspace in it."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "TREADLE_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


def configure(work: Path, point: str, command: str, **options: Any) -> None:
    file = work.parent / ".config/treadle/config.toml"
    file.parent.mkdir(parents=True, exist_ok=True)
    lines = [f"{key} = {json.dumps(value)}\n" for key, value in {"command": command, **options}.items()]
    with file.open("a") as opened:
        opened.write(f"[[hooks.{point}]]\n{''.join(lines)}")


def write_hooks(work: Path, text: str) -> None:
    (work / ".treadle").mkdir(exist_ok=True)
    (work / ".treadle/hooks.toml").write_text(text)


def build(work: Path, keyring: Keyring | None = None) -> tuple[Middleware | None, str]:
    hooks, note = build_command_hooks(load_settings({"workspace": str(work)}).settings, keyring)
    return (hooks[0] if hooks else None), note


async def ask(work: Path, tool: str = "shell", keyring: Keyring | None = None) -> HookResult | None:
    hook, _ = build(work, keyring)
    assert hook is not None
    call = HookCall(HookSession("s", str(work)), "c1", tool, "caution", {"command": "ls"})
    async with asyncio.timeout(PATIENCE):
        return await hook.before_tool(call)


def has_ended(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def read_pids(file: Path) -> list[str]:
    """Read the processes that a hook named before its time was over: on a slow machine it may have started none."""
    return file.read_text().split() if file.exists() else []


async def test_a_hook_reads_the_call_and_its_verdict_counts(work: Path) -> None:
    seen = work.parent / "seen.json"
    configure(work, "before_tool", f"""cat > {seen}; echo '{{"decision": "deny", "reason": "not today"}}'""")
    assert await ask(work) == HookResult("deny", "not today")
    told = json.loads(seen.read_text())
    assert told == {
        "event": "before_tool",
        "session_id": "s",
        "workspace": str(work),
        "parent": "",
        "call_id": "c1",
        "tool": "shell",
        "safety": "caution",
        "arguments": {"command": "ls"},
    }


async def test_a_hook_runs_only_for_the_tools_that_it_names(work: Path) -> None:
    configure(work, "before_tool", "exit 1", tools=["write_*"])
    assert await ask(work) is None
    assert (await ask(work, "write_file")) is not None


async def test_the_first_denial_counts_and_a_later_hook_cannot_undo_it(work: Path) -> None:
    ran = work.parent / "ran"
    configure(work, "before_tool", """echo '{"decision": "deny", "reason": "first"}'""")
    configure(work, "before_tool", f"touch {ran}; echo '{{}}'")
    assert await ask(work) == HookResult("deny", "first")
    assert not ran.exists()


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("exit 3", "exit code 3"),
        ("echo broken >&2; exit 1", "exit code 1: broken"),
        ("no-such-program-here", "exit code 127: .*not found"),
        ("echo yes", "no verdict for before_tool"),
        ("""echo '{"decision": "allow"}'""", "no verdict for before_tool.*allow"),
        ("""echo '{"decision": "deny", "extra": 1}'""", "no verdict for before_tool.*extra"),
        (r"printf '\377\376'", "no verdict for before_tool"),
        ("head -c 1000000 /dev/zero", "wrote more than 256 KiB"),
        ("head -c 1000000 /dev/zero >&2", "wrote more than 256 KiB"),
        ("kill -9 $$", "exit code"),
    ],
)
async def test_a_hook_that_fails_before_a_tool_denies_the_call_and_says_why(work: Path, command: str, why: str) -> None:
    configure(work, "before_tool", command)
    said = await ask(work)
    assert said is not None and said.decision == "deny" and said.failures == (said.reason,)
    assert re.search(why, said.reason, re.DOTALL), said.reason


async def test_a_hook_that_may_fail_is_ignored_and_its_failure_is_recorded(work: Path) -> None:
    configure(work, "before_tool", "exit 3", on_failure="ignore")
    said = await ask(work)
    assert said is not None and said.decision == "" and "exit code 3" in said.failures[0]


async def test_the_time_limit_ends_all_processes_of_a_hook(work: Path) -> None:
    pids = work.parent / "pids"
    configure(work, "before_tool", f"setsid sleep 600 & echo $! $$ > {pids}; sleep 600", timeout=0.5)
    said = await ask(work)
    assert said is not None and said.decision == "deny" and "did not end within 0.5 s" in said.reason
    for pid in read_pids(pids):
        await wait_until(partial(has_ended, pid), f"process {pid} ends")


async def test_endless_output_ends_a_hook_long_before_its_time_limit(work: Path) -> None:
    configure(work, "before_tool", "yes", timeout=600)
    said = await ask(work)
    assert said is not None and said.decision == "deny" and "wrote more than 256 KiB" in said.reason


async def test_a_hook_that_stops_its_supervisor_is_still_ended(work: Path) -> None:
    configure(work, "before_tool", "kill -STOP $PPID; sleep 600", timeout=0.5)
    said = await ask(work)
    assert said is not None and said.decision == "deny" and "did not end within 0.5 s" in said.reason


@pytest.mark.parametrize("where", ["kept", "thrown away"])
async def test_a_hook_that_kills_its_supervisor_is_still_ended(work: Path, where: str) -> None:
    """Its processes keep the pipe open, or none of them does."""
    pids, output = work.parent / "pids", "" if where == "kept" else "exec >/dev/null 2>&1; "
    script = f"{output}setsid sleep 600 & echo $! $$ > {pids}; kill -9 $PPID; sleep 600"
    configure(work, "before_tool", script, timeout=0.5 if where == "kept" else PATIENCE)
    said = await ask(work)
    assert said is not None and said.decision == "deny"
    assert ("did not end within 0.5 s" if where == "kept" else "exit code -9") in said.reason
    for pid in read_pids(pids):
        await wait_until(partial(has_ended, pid), f"process {pid} ends")


async def test_a_hook_reads_lone_surrogates_as_json_escapes_and_other_text_as_it_is(work: Path) -> None:
    seen = work.parent / "seen"
    configure(work, "before_tool", f"cat > {seen}")
    configure(work, "prompt", f"cat > {seen}")
    hook, _ = build(work)
    assert hook is not None
    call = HookCall(HookSession("s", str(work)), "c1", "shell", "caution", {"command": "é \ud800"})
    assert await hook.before_tool(call) == HookResult()
    assert "é \\ud800" in seen.read_text() and json.loads(seen.read_text())["arguments"] == call.arguments
    await hook.on_user_message("s", (TextPart("\udcff"),))
    assert json.loads(seen.read_text())["text"] == "\udcff"


async def test_a_long_reason_and_a_long_note_are_cut_and_say_so(work: Path) -> None:
    long = "$(head -c 200000 /dev/zero | tr '\\0' x)"
    for field in ("decision", "reason", "note"):
        configure(
            work, "before_tool" if field == "decision" else "prompt", f"""printf '{{"{field}": "%s"}}' "{long}" """
        )
    said = await ask(work)
    assert said is not None and "characters left out" in said.reason and len(said.reason) < 2000
    hook, _ = build(work)
    assert hook is not None
    [_, note] = await hook.on_user_message("s", (TextPart("hello"),))
    assert isinstance(note, TextPart) and "characters left out" in note.text and len(note.text) < 10000
    denied = read_verdict(
        "before_tool", HookOutput(0, b"", b""), json.dumps({"decision": "deny", "reason": "x" * 3000})
    )
    assert len(denied.reason) <= 2000 and denied.reason.endswith("[… 1050 characters left out …]")


async def test_a_hook_finds_no_programs_in_the_workspace(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, programs = work.parent / "seen", work / ".venv/bin"
    programs.mkdir(parents=True)
    (work.parent / "link").symlink_to(programs)
    monkeypatch.setenv("PATH", f"{programs}:bin::{work.parent / 'link'}:/opt/own:{os.environ['PATH']}")
    configure(work, "before_tool", f'echo "$PATH" > {seen}')
    assert await ask(work) == HookResult()
    entries = seen.read_text().strip().split(":")
    assert "/opt/own" in entries and all(entry.startswith("/") for entry in entries)
    assert not {str(programs), str(work.parent / "link")}.intersection(entries)


async def test_a_hook_gets_no_secrets_and_prints_none(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = work.parent / "env"
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret-value-123456")
    monkeypatch.setenv("MY_TOKEN", "another-secret")
    configure(work, "before_tool", f"env > {seen}; echo sk-secret-value-123456 >&2; exit 1")
    keyring = Keyring()
    keyring.take(["OPENAI_API_KEY"])
    said = await ask(work, keyring=keyring)
    assert said is not None and "sk-secret-value" not in said.reason
    assert (
        "secret-value" not in seen.read_text()
        and "another-secret" not in seen.read_text()
        and f"TREADLE_WORKSPACE={work}" in seen.read_text()
    )


async def test_a_secret_that_a_hook_spells_with_json_escapes_is_redacted_too(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret-value-123456")
    spelled = "".join(f"\\u{ord(letter):04x}" for letter in "sk-secret-value-123456")
    verdict = work.parent / "verdict"
    verdict.write_text(f'{{"decision": "deny", "reason": "you wrote {spelled}"}}')
    configure(work, "before_tool", f"cat {verdict}")
    keyring = Keyring()
    keyring.take(["OPENAI_API_KEY"])
    said = await ask(work, keyring=keyring)
    assert said is not None and said.reason.startswith("you wrote") and "secret-value" not in said.reason


async def test_hooks_on_a_message_refuse_it_or_add_a_note(work: Path) -> None:
    configure(work, "prompt", """grep -q password && echo '{"decision": "deny", "reason": "no secrets"}' || true""")
    configure(work, "prompt", """echo '{"note": "today is Monday"}'""")
    hook, _ = build(work)
    assert hook is not None
    parts = await hook.on_user_message("s", (TextPart("hello"),))
    assert parts[0] == TextPart("hello") and "today is Monday" in str(parts[1])
    with pytest.raises(MessageRefused, match="no secrets"):
        await hook.on_user_message("s", (TextPart("my password"),))


async def test_hooks_after_a_tool_and_at_the_end_are_told_and_may_answer(work: Path) -> None:
    seen = work.parent / "seen"
    configure(work, "after_tool", f"""cat >> {seen}; echo '{{"note": "run the tests"}}'""")
    configure(work, "run_end", f"""cat >> {seen}; echo '{{"decision": "continue", "reason": "not done"}}'""")
    hook, _ = build(work)
    assert hook is not None
    session = HookSession("s", str(work))
    call = HookCall(session, "c1", "shell", "caution", {})
    finished = CallFinished(call_id="c1", tool="shell", status="ok", output="two lines")
    assert await hook.after_tool(call, finished) == HookResult(note="run the tests")
    end = RunFinished(run_id="r", reason="answered", answer="done")
    assert await hook.on_run_end(session, end) == HookResult("continue", "not done")
    told = [json.loads(line) for line in seen.read_text().splitlines()]
    assert [one["event"] for one in told] == ["after_tool", "run_end"]
    assert (told[0]["output"], told[1]["answer"]) == ("two lines", "done")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('[[hooks.before_tool]]\ncommand = ""', "command is empty"),
        ('[[hooks.before_tool]]\ncommand = "x"\ntimeout = 0', "timeout is 0"),
        (r"[[hooks.before_tool]]" + "\n" + r'command = "x\u0000y"', "command has a NUL character"),
        ("[terminal]\n" + r'status_command = "x\u0000y"', "status_command has a NUL character"),
        ('[[hooks.before_tool]]\ncommand = "x"\ntools = ["shell(git *)"]', "write names such as"),
        ('[[hooks.prompt]]\ncommand = "x"\ntools = ["shell"]', "tools is only for"),
        ('[[hooks.never]]\ncommand = "x"', "never"),
    ],
)
def test_a_bad_hook_in_the_configuration_is_refused(work: Path, text: str, why: str) -> None:
    file = work.parent / ".config/treadle/config.toml"
    file.parent.mkdir(parents=True)
    file.write_text(text)
    with pytest.raises(BadInput, match=why):
        load_settings({"workspace": str(work)})


# ── hooks of a workspace ───────────────────────────────────────────────────────────────────────────────────

HOSTILE = '[[before_tool]]\ncommand = "touch $HOME/owned; echo {}"\n'


def trust(work: Path) -> None:
    found = read_workspace_hooks(work)
    assert found is not None
    trust_hooks(found, work)


async def test_hooks_of_a_workspace_run_only_after_exactly_this_text_was_trusted(work: Path) -> None:
    owned = work.parent / "owned"
    write_hooks(work, HOSTILE)
    hook, note = build(work)
    assert hook is None and "you have not trusted them" in note and "treadle hooks trust" in note
    trust(work)
    assert build(work)[1] == "" and await ask(work) == HookResult() and owned.exists()
    write_hooks(work, HOSTILE + " ")
    hook, note = build(work)
    assert hook is None and "changed since you trusted them" in note
    write_hooks(work, HOSTILE)
    assert build(work)[0] is not None
    assert forget_trust(work) and build(work)[0] is None and not forget_trust(work)


@pytest.mark.parametrize("change", ["text", "program", "more", "gone", "link"])
async def test_hooks_swapped_after_the_start_do_not_run_and_the_call_is_denied(work: Path, change: str) -> None:
    write_hooks(work, '[[before_tool]]\ncommand = "sh $TREADLE_WORKSPACE/.treadle/hooks/check.sh"\n')
    folder = work / ".treadle/hooks"
    folder.mkdir()
    (folder / "check.sh").write_text("echo '{}'\n")
    trust(work)
    hook, note = build(work)
    assert hook is not None and note == ""
    hooks, evil = work / ".treadle/hooks.toml", work.parent / "owned"
    match change:
        case "text":
            hooks.write_text(hooks.read_text() + "\n")
        case "program":
            (folder / "check.sh").write_text(f"touch {evil}; echo '{{}}'\n")
        case "more":
            (folder / "sh").write_text("")
        case "gone":
            hooks.unlink()
        case _:
            copy = work / "copy.toml"
            hooks.rename(copy)
            hooks.symlink_to(copy)
    call = HookCall(HookSession("s", str(work)), "c1", "shell", "caution", {})
    said = await hook.before_tool(call)
    assert said is not None and said.decision == "deny" and not evil.exists()


async def test_a_python_program_of_a_workspace_may_import_the_file_beside_it_each_time(work: Path) -> None:
    """Python would write a folder `__pycache__` beside it, and the text would no longer be the one that is trusted."""
    write_hooks(work, f'[[before_tool]]\ncommand = "{sys.executable} $TREADLE_WORKSPACE/.treadle/hooks/check.py"\n')
    (work / ".treadle/hooks").mkdir()
    (work / ".treadle/hooks/rules.py").write_text("WORD = 'no'\n")
    program = """import json, rules\nprint(json.dumps({"decision": "deny", "reason": rules.WORD}))\n"""
    (work / ".treadle/hooks/check.py").write_text(program)
    trust(work)
    assert [await ask(work), await ask(work)] == [HookResult("deny", "no")] * 2


async def test_new_trust_in_another_text_does_not_cover_the_hooks_of_a_running_session(work: Path) -> None:
    write_hooks(work, HOSTILE)
    trust(work)
    hook, _ = build(work)
    write_hooks(work, '[[before_tool]]\ncommand = "true"\n')
    trust(work)
    assert hook is not None
    said = await hook.before_tool(HookCall(HookSession("s", str(work)), "c", "shell", "caution", {}))
    assert said is not None and said.decision == "deny" and not (work.parent / "owned").exists()


async def test_hooks_of_a_workspace_do_not_run_in_a_worktree_with_other_hooks(work: Path) -> None:
    write_hooks(work, '[[before_tool]]\ncommand = "sh $TREADLE_WORKSPACE/.treadle/hooks/check.sh"\n')
    (work / ".treadle/hooks").mkdir()
    (work / ".treadle/hooks/check.sh").write_text("echo {}\n")
    trust(work)
    hook, _ = build(work)
    worktree = work.parent / "worktree"
    shutil.copytree(work, worktree)
    call = HookCall(HookSession("helper", str(worktree), "s"), "c", "shell", "caution", {})
    assert hook is not None and await hook.before_tool(call) == HookResult()
    (worktree / ".treadle/hooks/check.sh").write_text("touch $HOME/owned; echo {}\n")
    said = await hook.before_tool(call)
    assert said is not None and said.decision == "deny" and not (work.parent / "owned").exists()


def test_trust_holds_for_one_folder_and_not_for_a_clone_of_it(work: Path) -> None:
    write_hooks(work, HOSTILE)
    trust(work)
    clone = work.parent / "clone"
    clone.mkdir()
    write_hooks(clone, HOSTILE)
    assert build(work)[0] is not None and build(clone)[0] is None


@pytest.mark.parametrize("what", ["link", "folder link", "pipe", "large", "deep", "long number", "bad toml"])
def test_hooks_that_cannot_be_read_as_they_stand_are_not_run(work: Path, what: str) -> None:
    (work / ".treadle").mkdir()
    elsewhere, hooks = work.parent / "elsewhere", work / ".treadle/hooks.toml"
    elsewhere.mkdir()
    (elsewhere / "hooks.toml").write_text(HOSTILE)
    match what:
        case "link":
            hooks.symlink_to(elsewhere / "hooks.toml")
        case "folder link":
            (work / ".treadle").rmdir()
            (work / ".treadle").symlink_to(elsewhere)
        case "pipe":
            os.mkfifo(hooks)
        case "large":
            hooks.write_text(HOSTILE + "#" * 300_000)
        case "deep":
            hooks.write_text("a = " + "[" * 20_000)
        case "long number":
            hooks.write_text(f"{HOSTILE}timeout = {'1' * 5000}\n")
        case _:
            hooks.write_text("[[before_tool]]\ncommand = 7\n")
    hook, note = build(work)
    assert hook is None and note.startswith("the hooks of the workspace are not run"), note


def test_a_folder_among_the_programs_is_named_and_no_descriptor_is_lost(work: Path) -> None:
    write_hooks(work, HOSTILE)
    (work / ".treadle/hooks/inner").mkdir(parents=True)
    before = os.listdir("/proc/self/fd")
    assert ".treadle/hooks/inner is not a regular file" in build(work)[1]
    assert len(os.listdir("/proc/self/fd")) <= len(before)


def test_hooks_in_the_configuration_of_a_workspace_are_ignored(work: Path) -> None:
    (work / ".treadle").mkdir()
    (work / ".treadle/config.toml").write_text('[[hooks.before_tool]]\ncommand = "touch $HOME/owned"\n')
    loaded = load_settings({"workspace": str(work)})
    assert loaded.settings.hooks.before_tool == () and "hooks is ignored" in loaded.ignored[0]
