"""The commands beside run and chat: what they print, what they change, and how they end."""

import asyncio
import importlib
import json
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.fakes.chat import StrictChat
from tests.kit.fakes.server import Odd, status
from tests.kit.sessions import PATIENCE
from tests.kit.terminal import Case, Place, Start, call_tool, model_options, needs_sandbox, play
from treadle.cli.main import COMMANDS
from treadle.messages import Reply
from treadle.permissions.saved_rules import save_rule


class Guarded(StrictChat):
    """A server that shows its models only to who has the key."""

    def _answer(self, method: str, path: str, headers: dict[str, str], raw: bytes) -> Odd:
        return super()._answer(method, path, headers, raw) if self.is_authorised(headers) else status(401)


async def create_sessions(place: Place, *names: str) -> list[str]:
    """Sessions of these names with an answer each; their ids."""
    ids: list[str] = []
    async with StrictChat([Reply(text="Since Monday, because of the lock file.")]) as fake:
        for name in names:
            done = await place.quick("run", "why is the build red?", "--name", name, *model_options(fake), "--json")
            ids.append(done.document["session_id"])
    return ids


def run_program(*argv: str, stdin: str = "", place: Place | None = None) -> subprocess.CompletedProcess[str]:
    where = {"cwd": place.work, "env": place.env} if place is not None else {}
    return subprocess.run(argv, input=stdin, text=True, check=True, capture_output=True, **where)


async def test_help_names_every_command_and_each_shows_examples(place: Place) -> None:
    top = await place.quick("--help")
    assert top.code == 0 and top.err == ""
    for name in COMMANDS:
        assert f"\n  {name} " in top.out
        done = await place.quick(name, "--help")
        assert done.code == 0 and f"usage: treadle {name}" in done.out, name
        assert "examples:\n" in done.out and f"treadle {name}" in done.out.partition("examples:")[2], name


@pytest.mark.parametrize("name", ["sessions", "approvals", "models", "skills", "memory", "sandbox"])
async def test_the_help_of_an_action_shows_its_own_examples(place: Place, name: str) -> None:
    parser = importlib.import_module(f"treadle.cli.{name}").parser()
    (actions,) = (one.choices for one in parser._actions if isinstance(one.choices, dict))
    for action in actions:
        examples = (await place.quick(name, action, "--help")).out.partition("examples:\n")[2].splitlines()
        assert examples and all(f"treadle {name} {action}" in line for line in examples), action


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["sesions"], 2, "did you mean sessions?"),
        (["sessions", "list", "--allow-root"], 2, "arguments: --allow-root; `treadle sessions --help` shows the usage"),
        (["tidy"], 2, "treadle run tidy. `treadle --help` lists the commands"),
        (["chat"], 2, "needs a terminal"),
        (["models", "default", "gpt-9"], 2, "gpt-9"),
        (["--version"], 0, "treadle "),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
async def test_a_command_that_cannot_run_says_why(place: Place, words: list[str], code: int, told: str) -> None:
    done = await place.quick(*words)
    assert done.code == code and told in (done.err or done.out)


async def test_sessions_are_listed_and_found_by_name_and_beginning_of_id(place: Place) -> None:
    first, second = await create_sessions(place, "alpha", "beta")
    listed = await place.quick("sessions")
    heads, *rows = listed.out.splitlines()
    assert heads.split() == ["session", "status", "name", "age", "cost", "turns", "workspace"]
    assert [row.split()[:3] for row in rows] == [[second[:12], "answered", "beta"], [first[:12], "answered", "alpha"]]
    assert (await place.quick("sessions", "list", "--status", "failed")).out == ""
    lines = (await place.quick("sessions", "list", "--json", "--limit", "1")).out.splitlines()
    assert [json.loads(line)["id"] for line in lines] == [second]
    for reference in (second, second[:8], "beta"):
        shown = await place.quick("sessions", "show", reference)
        assert shown.code == 0 and "› why is the build red?" in shown.out and "Since Monday" in shown.out
    assert (await place.quick("sessions", "show", second[:2])).code == 2
    await place.quick("sessions", "rename", first[:8], "beta")
    several = await place.quick("sessions", "show", "beta")
    assert several.code == 2 and f"'beta' matches 2 sessions ({first[:12]}, {second[:12]})" in several.err
    for reference in ("", " "):
        unset = await place.quick("sessions", "delete", reference, "--yes")
        assert unset.code == 2 and "name a session by its id" in unset.err
    for reference, told in [("gamma", "'gamma'"), ("caf\udce9", "'caf?'")]:
        gone = await place.quick("sessions", "show", reference)
        assert gone.code == 2 and f"no session has the id or the name {told}" in gone.err


async def test_sessions_elsewhere_are_not_listed_for_a_workspace(place: Place, tmp_path: Path) -> None:
    await create_sessions(place, "here")
    assert "here" in (await place.quick("sessions", "list", "--workspace", ".")).out
    (tmp_path / "other").mkdir()
    assert (await place.quick("sessions", "list", "--workspace", str(tmp_path / "other"))).out == ""
    place.work = tmp_path / "other"
    assert "here" in (await place.quick("sessions", "list")).out, "without --workspace, the folder does not matter"


async def test_transcripts_are_searched(place: Place) -> None:
    (session,) = await create_sessions(place, "alpha")
    found = await place.quick("sessions", "search", "monday lock")
    assert session[:12] in found.out and "alpha" in found.out and "lock file" in found.out
    assert (await place.quick("sessions", "search", "tuesday")).out == ""


async def test_a_session_is_renamed_forked_and_deleted(place: Place) -> None:
    (session,) = await create_sessions(place, "alpha")
    assert (await place.quick("sessions", "rename", "alpha", "the red build")).code == 0
    forked = (await place.quick("sessions", "fork", "the red build", "--at", "3")).out.strip()
    assert len(forked) == 32 and forked != session
    await place.quick("sessions", "rename", forked, "the red build")
    both = await place.quick("sessions", "show", "the red build")
    assert both.code == 2 and "matches 2 sessions" in both.err
    refused = await place.quick("sessions", "delete", session)
    assert refused.code == 2 and "--yes deletes without asking" in refused.err
    deleted = await place.quick("sessions", "delete", session, "--yes")
    assert deleted.code == 0 and forked[:12] in deleted.err
    left = await place.quick("sessions", "list", "--json")
    assert [json.loads(line)["id"] for line in left.out.splitlines()] == [forked]


async def test_deleting_asks_at_a_terminal(place: Place) -> None:
    (session,) = await create_sessions(place, "alpha")
    delete = ("sessions", "delete", "alpha")
    steps = [("", "[y/N]"), ("n\r", 1), ("", "nothing was deleted"), (Start(delete), "[y/N]"), ("\x03", 130)]
    steps += [(Start(delete), "[y/N]"), ("y\r", 0)]
    await play(place, Case("", [], steps, delete))
    assert (await place.quick("sessions", "show", session)).code == 2


async def test_an_export_imports_again_with_the_same_conversation(place: Place, tmp_path: Path) -> None:
    (session,) = await create_sessions(place, "alpha")
    first = await place.quick("sessions", "export", "alpha")
    imported = await place.quick("sessions", "import", "-", "--store", str(tmp_path / "b.db"), stdin=first.out)
    assert imported.code == 0 and imported.out.strip() == session
    markdown = ("sessions", "export", session, "--form", "markdown")
    there = await place.quick(*markdown, "--store", str(tmp_path / "b.db"))
    assert "because of the lock file" in there.out and there.out == (await place.quick(*markdown)).out
    again = await place.quick("sessions", "import", "-", stdin=first.out)
    assert again.code == 1 and "--new-id imports it under a new id" in again.err
    beside = await place.quick("sessions", "import", "-", "--new-id", stdin=first.out)
    assert beside.code == 0 and beside.out.strip() != session
    page = tmp_path / "page.html"
    assert (await place.quick("sessions", "export", session, "--form", "html", "--output", str(page))).out == ""
    assert page.read_text().startswith("<!doctype html>")


async def test_a_session_continues_with_a_fresh_budget_after_a_limit(place: Place) -> None:
    script = [call_tool("current_time"), Reply(text="Not done."), Reply(text="Now it is done.")]
    async with StrictChat(script) as fake:
        stopped = await place.quick("run", "work", "--max-turns", "1", *model_options(fake), "--json")
        assert stopped.code == 3
        session = stopped.document["session_id"]
        going = await place.quick("sessions", "continue", session, *model_options(fake), "--json")
    assert going.code == 0 and going.document["answer"] == "Now it is done."


async def test_an_approval_for_a_question_is_refused_and_an_answer_is_taken(place: Place) -> None:
    async with StrictChat(
        [call_tool("ask_user", question="Which?", options=["red", "blue"]), Reply(text="Blue.")]
    ) as fake:
        waiting = await place.quick("run", "paint", *model_options(fake), "--ask-later", "--json")
        session = waiting.document["session_id"]
        assert "Which?  (red, blue)" in (await place.quick("approvals")).out
        assert (await place.quick("approvals", "allow", session)).code == 2
        assert (await place.quick("approvals", "answer", session, "blue")).code == 0
        assert (await place.quick("approvals")).out == ""
        done = await place.quick("sessions", "resume", session, *model_options(fake))
        told = fake.seen[-1].body["messages"][-1]["content"]
    assert (done.code, done.out, told) == (0, "Blue.\n", "blue")


async def test_what_was_allowed_runs_also_when_it_is_resumed_with_other_flags(place: Place) -> None:
    script = [call_tool("write_file", path="a.txt", content="x"), Reply(text="Written.")]
    async with StrictChat(script) as fake:
        waiting = await place.quick(
            "run", "write", "--access", "read-only", *model_options(fake), "--ask-later", "--json"
        )
        session = waiting.document["session_id"]
        assert (await place.quick("approvals", "allow", session)).code == 0
        done = await place.quick("sessions", "resume", session, *model_options(fake), "--approve", "read_*", "--json")
    assert (done.code, done.document["calls"]) == (0, [{"tool": "write_file", "status": "ok"}])


async def test_the_doctor_says_what_works_and_what_to_do(place: Place) -> None:
    async with StrictChat() as fake:
        done = await place.quick("doctor", *model_options(fake))
    names = [line.split()[1] for line in done.out.splitlines() if line[:1] in "✓!✗"]
    assert names == [
        "configuration",
        "model",
        "sandbox",
        "tools",
        "store",
        "user",
        "disk",
        "search",
        "terminal",
        "proxy",
    ]
    assert "✓ model         fake" in done.out
    assert not (place.home / ".local/share/treadle/treadle.db").exists(), "a look must not make a store"


async def test_the_doctor_looks_at_the_file_that_was_named_and_says_its_keys(place: Place) -> None:
    file = place.home / "mine.toml"
    file.write_text('approve = ["shell(git *)"]\n[mcp.odd]\nnonsense = 1\n')
    async with StrictChat() as fake:
        done = await place.quick("doctor", *model_options(fake), "--config", str(file))
    assert f"✓ configuration {file}; " in done.out and f"approve from {file}" in done.out
    assert f"fix it in {file}" in done.out


@pytest.mark.parametrize(
    ("words", "env", "code", "parts"),
    [
        (
            ["--model", "local"],
            {},
            0,
            ["! model         local: its weights are downloaded at first use", "treadle models pull local"],
        ),
        (
            ["FAKE"],
            {"HTTP_PROXY": "http://127.0.0.1:9", "NO_PROXY": ""},
            0,
            ["✓ model         fake", "✓ proxy         HTTP_PROXY set, not used for this machine"],
        ),
        (
            ["--model", "openai:x", "--store", "broken.db"],
            {},
            1,
            [
                "✗ model         openai needs a key and OPENAI_API_KEY is not set",
                "✗ store         broken.db",
                "choose another with --store",
            ],
        ),
        (
            ["FAKE", "--store", "broken.db/treadle.db"],
            {},
            1,
            ["✗ store         broken.db/treadle.db cannot be created"],
        ),
        (["FAKE"], {"TEST_KEY": "sk-old"}, 1, ["rejects the key (401)", "check TEST_KEY"]),
        (
            ["--model", "fake", "--base-url", "http://127.0.0.1:9/v1"],
            {},
            1,
            ["✗ model         fake", "cannot be reached"],
        ),
    ],
    ids=["weights not fetched", "a proxy", "no key and no store", "no folder for a store", "a wrong key", "no server"],
)
async def test_the_doctor_finds_what_does_not_work_and_says_what_to_do(
    place: Place, words: list[str], env: dict[str, str], code: int, parts: list[str]
) -> None:
    text = "this is no store, and it is long enough to be looked at" * 100
    (place.work / "broken.db").write_text(text)
    async with Guarded() as fake:
        options = [option for word in words for option in (model_options(fake) if word == "FAKE" else [word])]
        done = await place.quick("doctor", *options, env=env)
    assert done.code == code and [part for part in parts if part not in done.out] == []
    assert "sk-old" not in done.out and (place.work / "broken.db").read_text() == text


async def test_an_mcp_server_that_does_not_start_gives_a_warning(place: Place) -> None:
    file = place.home / "mine.toml"
    file.write_text('[mcp.issues]\ncommand = "there-is-no-such-server"\n')
    async with StrictChat([Reply(text="Hello.")]) as fake:
        done = await place.quick("run", "hi", *model_options(fake), "--config", str(file))
    assert (done.code, done.out) == (0, "Hello.\n")
    assert "the MCP server issues does not run, so its tools are missing: " in done.err


@pytest.mark.parametrize(
    ("flag", "value", "told"),
    [
        ("--port", "99999", "cannot be listened on"),
        ("--port", "-1", "another --host or --port"),
        ("--host", "no.such.invalid", "cannot be listened on"),
        ("--root", "nowhere", "--root nowhere is no folder"),
    ],
)
async def test_a_server_that_cannot_start_is_two(place: Place, flag: str, value: str, told: str) -> None:
    (place.work / ".treadle").mkdir()
    (place.work / ".treadle" / "config.toml").write_text('model = "openai:x"\n')
    async with StrictChat() as fake:
        done = await place.quick("serve", "--allow-root", flag, value, *model_options(fake))
    assert done.code == 2 and told in done.err
    assert "config.toml: model is ignored: a workspace may not set it" in done.err


async def test_weights_without_their_engine_are_brought_with_a_word_on_it(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = place.home / "small.gguf"
    file.write_bytes(b"GGUF" + b"0" * 64)
    monkeypatch.setattr("treadle.cli.models.has_local_runtime", lambda: False)
    done = await place.quick("models", "pull", str(file))
    assert done.code == 0 and 'after: pip install "treadle[local]"' in done.err


async def test_models_are_listed_with_the_reason(place: Place) -> None:
    done = await place.quick("models", env={"GROQ_API_KEY": "sk-secret"})
    assert done.code == 0 and "sk-secret" not in done.out
    assert "✓ groq:NAME" in done.out and "GROQ_API_KEY is set" in done.out
    assert "OPENAI_API_KEY is not set" in done.out


async def test_the_default_model_is_written_to_the_users_file(place: Place) -> None:
    assert (await place.quick("models", "default", "ollama:qwen3")).code == 0
    assert (place.home / ".config/treadle/config.toml").read_text() == 'model = "ollama:qwen3"\n'


async def test_what_was_answered_for_good_is_shown_and_can_be_taken_back(place: Place) -> None:
    save_rule(place.home / ".local/share/treadle", "shell(git push *)", workspace=place.work)
    save_rule(place.home / ".local/share/treadle", "write_file(src/**)", "deny")
    listed = (await place.quick("approvals", "rules")).out.splitlines()
    assert listed == [f"allow  shell(git push *)  {place.work.resolve()}", "deny   write_file(src/**)  everywhere"]
    assert (await place.quick("approvals", "forget", "shell(git push *)")).code == 0
    assert (await place.quick("approvals", "rules")).out == "deny   write_file(src/**)  everywhere\n"
    assert (await place.quick("approvals", "forget", "shell(git push *)")).code == 2


async def test_tools_agents_skills_and_memory_are_shown(place: Place) -> None:
    assert "edit_file" in (offered := (await place.quick("tools")).out) and "fetch_url" not in offered
    assert "fetch_url" in (await place.quick("tools", "--web")).out
    reads = (await place.quick("tools", "--agent", "reader")).out
    assert "delegate" in offered and "remember" in offered and "read_file" in reads and "write_file" not in reads
    assert (await place.quick("tools", "--agent", "nobody")).code == 2
    assert "example.org" in (await place.quick("tools", "shell", "--allow-host", "example.org")).out
    assert '"command"' in (await place.quick("tools", "bash")).out
    assert (await place.quick("tools", "nonsense")).code == 2
    assert "coder" in (await place.quick("agents")).out
    skill = place.work / ".treadle/skills/greet"
    skill.mkdir(parents=True)
    (skill / "SKILL.md").write_text("---\nname: greet\ndescription: How to greet.\n---\nSay hello.\n")
    assert "How to greet." in (await place.quick("skills")).out
    added = await place.quick("memory", "add", "Releases are cut on Mondays.")
    assert "Mondays" in (await place.quick("memory", "search", "releases")).out
    assert (await place.quick("memory", "edit", added.out.strip(), "Releases are cut on Fridays.")).code == 0
    assert "you" in (listed := (await place.quick("memory")).out) and "Fridays" in listed and "Mondays" not in listed
    away = ("--all", "--workspace", str(place.home))
    assert f"fact  {place.work}  you" in (await place.quick("memory", "list", *away)).out, "it is not remembered there"
    assert (await place.quick("memory", "forget", added.out.strip())).code == 0
    assert (await place.quick("memory")).out == ""


async def test_a_drafted_skill_is_looked_at_and_accepted_or_declined(place: Place) -> None:
    own = place.home / ".config/treadle"
    for name in ("notes", "taste"):
        (own / "proposals" / name).mkdir(parents=True)
        (own / "proposals" / name / "SKILL.md").write_text(f"---\nname: {name}\ndescription: d\n---\nDo it.\n")
    shown = await place.quick("skills", "proposals")
    assert "+Do it." in shown.out and "treadle skills accept notes" in shown.err
    assert "notes" not in (listed := await place.quick("skills")).out and "drafted from finished work: 2" in listed.err
    assert (await place.quick("skills", "accept", "notes")).code == 0
    assert (await place.quick("skills", "decline", "taste")).code == 0
    assert (await place.quick("skills", "accept", "taste")).code == 1
    assert (
        "notes" in (await place.quick("skills")).out and "taste" not in (await place.quick("skills", "proposals")).out
    )


@needs_sandbox
async def test_a_sandboxed_command_passes_its_output_and_exit_code_on(place: Place) -> None:
    (place.home / "secret").write_text("hidden")
    done = await place.run("sandbox", "exec", "--workspace", ".", "--", "sh", "-c", "echo out; echo err >&2; exit 7")
    assert (done.code, sorted(done.out.split())) == (7, ["err", "out"])
    secret = await place.run("sandbox", "exec", "--", "cat", str(place.home / "secret"))
    assert secret.code != 0 and "hidden" not in secret.out
    late = await place.run("sandbox", "exec", "--wall-s", "0.5", "--", "sleep", "30")
    assert late.code == 124 and "limit wall" in late.err
    assert (await place.quick("sandbox", "exec")).code == 2
    bad = await place.run("sandbox", "exec", "--memory-mb", "-1", "--", "true")
    assert bad.code == 2 and "memory_mb is -1" in bad.err


@needs_sandbox
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_a_signal_ends_a_sandboxed_command_and_leaves_nothing_of_it_behind(
    number: signal.Signals, place: Place
) -> None:
    process = await place.start("sandbox", "exec", "--", "sh", "-c", "echo begun; exec sleep 600")
    async with asyncio.timeout(PATIENCE):
        assert process.stdout is not None and await process.stdout.readline() == b"begun\n"
        assert (place.work / ".git").is_dir()
        process.send_signal(number)
        assert await process.wait() == 128 + number
    assert not (place.work / ".git").exists() and not (place.work / ".treadle").exists()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
async def test_completion_knows_commands_actions_and_options(place: Place, shell: str) -> None:
    script = (await place.quick("completion", shell)).out
    for word in ("sessions", "export", "approvals"):
        assert word in script
    if shutil.which(shell):
        run_program(shell, "-n", stdin=script)


async def test_completion_completes_in_bash(place: Place) -> None:
    (place.work / "picture.png").touch()
    (place.work / "places").mkdir()
    script = (await place.quick("completion", "bash")).out
    for words, found in [
        ("ses", "sessions"),
        ("sessions ren", "rename"),
        ("sessions export --fo", "--form"),
        ("sessions export --form h", "html"),
        ("run --access r", "read-only"),
        ("completion f", "fish"),
        ("run --image pic", "picture.png"),
        ("run --workspace p", "places"),
    ]:
        at = len(words.split())
        asked = f"COMP_WORDS=(treadle {words}); COMP_CWORD={at}; _shtab_treadle; echo ${{COMPREPLY[@]}}"
        assert run_program("bash", "-c", f"{script}\n{asked}", place=place).stdout.strip() == found, words


async def test_a_reader_that_leaves_does_not_make_a_mess(place: Place) -> None:
    await create_sessions(place, "alpha")
    command = f"{shlex.quote(sys.executable)} -m treadle sessions show alpha | head -c 1"
    done = run_program("bash", "-c", command, place=place)
    assert "Traceback" not in done.stderr and "BrokenPipe" not in done.stderr


async def test_a_session_that_runs_elsewhere_is_watched_and_steered(place: Place) -> None:
    asked = call_tool("write_file", path="AGENTS.md", content="be kind\n")
    async with (
        StrictChat([asked, Reply(text="It is written."), Reply(text="You are welcome.")]) as fake,
        place.screen("chat", "--name", "job", *model_options(fake)) as owner,
    ):
        await owner.until("What shall be done?")
        owner.type("write it\r")
        await owner.until("Esc stops the run")
        async with place.screen("attach", "job") as other:
            await other.until("Ctrl-C leaves")
            assert "write_file wants to run" in other.text and "be kind" in other.text
            other.type("y")
            await other.until("It is written.")
            other.type("thank you\r")
            await other.until("You are welcome.")
            other.type("\x03")
            assert await other.end() == 0
            assert "detached; session" in other.text and "cancelled" not in other.text
        await owner.until("You are welcome.")
        owner.type("/quit\r")
        assert await owner.end() == 0
    assert (place.work / "AGENTS.md").read_text() == "be kind\n"


async def test_without_a_terminal_attach_shows_what_there_is_and_ends(place: Place) -> None:
    await create_sessions(place, "alpha")
    done = await place.quick("attach", "alpha")
    assert done.code == 0 and "Since Monday" in done.out


async def test_a_chat_does_not_begin_with_an_image_that_is_none(place: Place) -> None:
    async with StrictChat() as fake, place.screen("chat", "--image", "none.png", *model_options(fake)) as screen:
        assert await screen.end() == 2
    assert "there is no image none.png" in screen.text
