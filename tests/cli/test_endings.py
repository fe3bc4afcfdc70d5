"""Every ending of `treadle run`: its exit code, its document, its lines, and that stdout holds nothing else."""

import asyncio
import itertools
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.kit.fakes.chat import StrictChat
from tests.kit.fakes.server import Odd, status
from tests.kit.sessions import PATIENCE
from tests.kit.terminal import Done, Place, call_tool, model_options
from treadle.errors import TreadleError
from treadle.events import RunFinished, SessionConfigured, decode_event
from treadle.log.base import SessionQuery
from treadle.log.sqlite import SqliteLog
from treadle.messages import Reply

ASKED = call_tool("write_file", path="AGENTS.md", content="obey")
FIELDS = {"session_id", "status", "reason", "answer", "turns", "calls", "denied", "pending", "usage", "cost", "error"}
USAGE = {"input_tokens", "output_tokens", "cached_tokens", "reasoning_tokens", "estimated"}


def golden(done: Done) -> dict[str, Any]:
    """The document without what differs from run to run."""
    document = done.document
    assert set(document) == FIELDS and set(document["usage"]) == USAGE
    assert document["cost"] == 0.0
    for line in done.log_lines:  # every line on stderr is JSON, and every event one that we know
        if line["type"] != "log":
            decode_event(json.dumps(line))
    return {name: document[name] for name in ("status", "reason", "answer", "turns", "calls", "denied", "error")}


def check_lines(done: Done) -> list[dict[str, Any]]:
    """Stdout is events and nothing else, from the session's beginning, in the order of the log."""
    lines = done.lines
    for line in done.out.splitlines():
        decode_event(line)
    assert lines[0]["type"] == "session_created"
    seqs = [line["seq"] for line in lines if "seq" in line]
    assert seqs == sorted(set(seqs))
    return lines


def offers(body: dict[str, Any]) -> bool:
    """Whether a request lets the model call tools; the last turn at a limit does not."""
    return bool(body.get("tools")) and body.get("tool_choice") != "none"


async def test_an_answer_is_zero_and_the_document_holds_it(place: Place) -> None:
    async with StrictChat([call_tool("calculate", expression="6*7"), Reply(text="It is 42.")]) as fake:
        done = await place.run("run", "what is six times seven?", *model_options(fake), "--json")
    assert done.code == 0
    assert golden(done) == {
        "status": "answered",
        "reason": "answered",
        "answer": "It is 42.",
        "turns": 2,
        "calls": [{"tool": "calculate", "status": "ok"}],
        "denied": [],
        "error": "",
    }
    assert done.document["usage"]["output_tokens"] > 0 and len(done.document["session_id"]) == 32


async def test_the_document_comes_although_nobody_reads_the_events(place: Place) -> None:
    async with StrictChat([call_tool("calculate", expression="6*7"), Reply(text="It is 42.")]) as fake:
        reader, writer = os.pipe()
        os.close(reader)
        process = await place.start("run", "add", *model_options(fake), "--json", stderr=writer)
        os.close(writer)
        async with asyncio.timeout(PATIENCE):
            out, _ = await process.communicate()
    assert process.returncode == 0 and json.loads(out)["answer"] == "It is 42."


async def test_every_event_is_a_line(place: Place) -> None:
    async with StrictChat([call_tool("calculate", expression="6*7"), Reply(text="It is 42.")]) as fake:
        done = await place.run("run", "what is six times seven?", *model_options(fake), "--jsonl")
    assert done.code == 0 and done.err == ""
    types = [line["type"] for line in check_lines(done)]
    assert types[:4] == ["session_created", "message_received", "run_started", "turn_started"]
    assert types[-1] == "run_finished" and "call_started" in types and "text_delta" in types


async def test_without_a_terminal_stdout_is_the_answer_and_nothing_has_escape_codes(place: Place) -> None:
    replies = [
        Reply(text="Let me see.", calls=call_tool("calculate", expression="1+1").calls, finish="calls"),
        Reply(text="2"),
    ]
    async with StrictChat(replies) as fake:
        done = await place.run("run", "add", *model_options(fake))
    assert (done.code, done.out) == (0, "2\n")
    assert "Let me see." in done.err and "✓ calculate 1+1" in done.err and "treadle chat --session" in done.err
    assert "\x1b" not in done.err


async def test_a_limit_is_three_and_never_success(place: Place) -> None:
    script = [call_tool("current_time"), Reply(text="I have looked at the clock only.")]
    async with StrictChat(script) as fake:
        done = await place.run("run", "work", *model_options(fake), "--max-turns", "1", "--json")
    assert done.code == 3
    assert golden(done) | {"turns": 0} == {
        "status": "stopped",
        "reason": "turn_limit",
        "answer": "I have looked at the clock only.",
        "turns": 0,
        "calls": [{"tool": "current_time", "status": "ok"}],
        "denied": [],
        "error": "",
    }


@pytest.mark.parametrize(
    ("flags", "reason"), [(["--max-calls", "1"], "call_limit"), (["--max-tokens", "3"], "token_limit")]
)
async def test_every_limit_has_its_reason(place: Place, flags: list[str], reason: str) -> None:
    numbers = itertools.count()

    def working(body: dict[str, Any]) -> Reply:
        return call_tool("calculate", expression=f"{next(numbers)}+1") if offers(body) else Reply(text="That is all.")

    async with StrictChat(working) as fake:
        done = await place.run("run", "work", *model_options(fake), *flags, "--json")
    assert done.code == 3 and (done.document["status"], done.document["reason"]) == ("stopped", reason)


async def test_a_loop_is_three(place: Place) -> None:
    def again(body: dict[str, Any]) -> Reply:
        return call_tool("calculate", expression="1+1") if offers(body) else Reply(text="It goes round in circles.")

    async with StrictChat(again) as fake:
        done = await place.run("run", "work", *model_options(fake), "--json")
    assert done.code == 3 and done.document["reason"] == "doom_loop" and done.document["status"] == "stopped"


async def test_what_needs_a_person_is_denied_at_once_in_a_script_and_is_four(place: Place) -> None:
    async with StrictChat([ASKED, Reply(text="I could not write it.")]) as fake:
        done = await place.run("run", "write it", *model_options(fake), "--json")
        told = fake.seen[-1].body["messages"][-1]["content"]
    assert done.code == 4
    document = golden(done)
    assert (document["status"], document["reason"], document["answer"]) == (
        "denied",
        "answered",
        "I could not write it.",
    )
    assert document["calls"] == [{"tool": "write_file", "status": "denied"}]
    (denied,) = document["denied"]
    assert denied["tool"] == "write_file" and denied["arguments"]["path"] == "AGENTS.md" and denied["why"]
    assert "Nobody can be asked here" in told and "--yes" in told
    assert not (place.work / "AGENTS.md").exists()


@pytest.mark.parametrize(
    ("script", "flags", "code", "last"),
    [
        (
            [call_tool("current_time"), Reply(text="That is all.")],
            ["--max-turns", "1"],
            3,
            ("run_finished", "turn_limit"),
        ),
        ([ASKED, Reply(text="I could not.")], [], 4, ("run_finished", "answered")),
        ([ASKED], ["--ask-later"], 4, ("approval_requested", None)),
    ],
)
async def test_lines_end_with_what_it_came_to(
    place: Place, script: list[Reply], flags: list[str], code: int, last: tuple[str, str | None]
) -> None:
    async with StrictChat(script) as fake:
        done = await place.run("run", "work", *model_options(fake), *flags, "--jsonl")
    assert (done.code, done.err) == (code, "")
    end = check_lines(done)[-1]
    assert (end["type"], end.get("reason")) == last


async def test_a_question_that_nobody_can_answer_is_four(place: Place) -> None:
    async with StrictChat([call_tool("ask_user", question="Which one?"), Reply(text="I took the first.")]) as fake:
        done = await place.run("run", "choose", *model_options(fake), "--json")
        told = fake.seen[-1].body["messages"][-1]["content"]
    assert done.code == 4 and golden(done)["denied"][0]["questions"] == ["Which one?"]
    assert "Decide yourself" in told


async def test_what_is_forbidden_is_denied_but_was_not_to_be_asked(place: Place) -> None:
    async with StrictChat([call_tool("write_file", path="a.txt", content="x"), Reply(text="no")]) as fake:
        done = await place.run("run", "write it", *model_options(fake), "--forbid", "write_*", "--json")
    assert done.code == 0
    (denied,) = golden(done)["denied"]
    assert denied["tool"] == "write_file" and "forbidden by write_*" in denied["why"]


@pytest.mark.parametrize("flags", [["--yes"], ["--approve", "write_file"], ["--approve", "write_file(AGENTS.md)"]])
async def test_what_was_approved_beforehand_runs(place: Place, flags: list[str]) -> None:
    async with StrictChat([ASKED, Reply(text="written")]) as fake:
        done = await place.run("run", "write it", *model_options(fake), *flags, "--json")
    assert done.code == 0 and (place.work / "AGENTS.md").read_text() == "obey"


async def test_a_pattern_that_names_no_tool_is_told(place: Place) -> None:
    patterns = ("--forbid", "shel(rm *)", "bash", "issues__close", "write_*", "--approve", "writefile")
    async with StrictChat([Reply(text="done")]) as fake:
        done = await place.run("run", "tidy up", *model_options(fake), *patterns)
    told = [line for line in done.err.splitlines() if "no tool here" in line]
    assert done.code == 0 and told == [
        "--approve writefile: no tool here has that name; did you mean write_file?",
        "--forbid shel(rm *): no tool here has that name; did you mean shell?",
    ]


async def test_a_yes_never_overrules_a_no(place: Place) -> None:
    async with StrictChat([ASKED, Reply(text="not written")]) as fake:
        done = await place.run("run", "write it", *model_options(fake), "--yes", "--access", "read-only", "--json")
    assert done.code == 0 and golden(done)["calls"] == [{"tool": "write_file", "status": "denied"}]
    assert not (place.work / "AGENTS.md").exists()


async def test_what_may_wait_for_a_person_is_left_in_the_log_and_goes_on_when_answered(place: Place) -> None:
    async with StrictChat([ASKED, Reply(text="written")]) as fake:
        done = await place.run("run", "write it", *model_options(fake), "--ask-later", "--json")
        assert done.code == 4
        assert (golden(done)["status"], golden(done)["reason"]) == ("waiting", "waiting")
        assert done.document["pending"][0]["tool"] == "write_file"
        session = done.document["session_id"]
        listed = await place.quick("approvals", "list")
        assert (
            session[:12] in listed.out
            and "write_file wants to run  [destructive]" in listed.out
            and "+obey" in listed.out
        )
        allowed = await place.quick("approvals", "allow", session[:8])
        assert allowed.code == 0, allowed.err
        again = await place.quick("approvals", "allow", session[:8])
        assert again.code == 2 and "nothing is open" in again.err
        resumed = await place.run("sessions", "resume", session[:8], *model_options(fake), "--json")
    assert resumed.code == 0 and golden(resumed)["answer"] == "written"
    assert (place.work / "AGENTS.md").read_text() == "obey"


@pytest.mark.parametrize("form", ["--json", "--jsonl", "plain"])
async def test_a_provider_that_refuses_is_one(place: Place, form: str) -> None:
    async with StrictChat([status(401, "this key is not known")]) as fake:
        done = await place.run("run", "hello", *model_options(fake), *([form] if form != "plain" else []))
    assert done.code == 1
    if form == "--json":
        document = golden(done)
        assert (document["status"], document["reason"]) == ("failed", "failed") and "key" in document["error"]
    elif form == "--jsonl":
        last = decode_event(done.out.splitlines()[-1])
        assert isinstance(last, RunFinished) and last.reason == "failed"
        check_lines(done)
    else:
        assert done.out == "" and "failed" in done.err


async def test_a_provider_that_is_not_there_is_one(place: Place) -> None:
    words = ["--model", "x", "--base-url", "http://127.0.0.1:9/v1"]
    done = await place.run("run", "hello", *words, "--json")
    assert done.code == 1
    document = golden(done)
    assert document["status"] == "failed" and "127.0.0.1:9" in document["error"]


@pytest.mark.parametrize("form", ["--json", "--jsonl", "plain"])
async def test_a_run_that_no_event_tells_the_end_of_says_why(
    place: Place, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise TreadleError("no room left on the disk")

    monkeypatch.setattr("treadle.cli.run.build_message", broken)
    words = ["--model", "x", "--base-url", "http://127.0.0.1:9/v1"]
    done = await place.quick("run", "hello", *words, *([form] if form != "plain" else []))
    assert done.code == 1
    if form == "--json":
        assert golden(done)["error"] == "no room left on the disk"
    else:
        assert done.out == "" and done.err.count("no room left on the disk") == 1


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["run", "x", "--nonsense"], "unrecognized arguments: --nonsense"),
        (["run", "x", "--sesion", "y"], "did you mean --session?"),
        (["run", "x", "--access", "read-onyl"], "did you mean read-only?"),
        (["run"], "say what is to be done"),
        (["run", "  "], "the objective is empty"),
        (["run", "x", "--max-turns", "many"], "--max-turns"),
        (["run", "x", "--max-turns", "1000"], "200"),
        (["run", "x", "--workspace", "/none"], "there is no folder /none"),
        (["run", "x", "--session", "nobody"], "no session has the id or the name 'nobody'"),
        (["run", "x", "--model", "gpt-9"], "Did you mean openai:gpt-9?"),
        (["run", "x", "--config", "/none.toml"], "/none.toml"),
        (
            ["run", "x", "--image", "/none.png", "--model", "m", "--base-url", "http://127.0.0.1:9"],
            "no image /none.png",
        ),
        (["run", "x", "--system-prompt", "@/none", "--model", "m", "--base-url", "http://127.0.0.1:9"], "/none"),
    ],
)
async def test_bad_usage_is_two_in_every_form(place: Place, words: list[str], told: str) -> None:
    plain = await place.quick(*words)
    assert (plain.code, plain.out) == (2, "") and told in plain.err
    as_document = await place.quick(*words, "--json")
    assert as_document.code == 2 and told in as_document.document["error"]
    assert (as_document.document["status"], as_document.document["reason"]) == ("failed", "usage")
    assert (await place.quick("sessions", "list")).err == "no sessions here\n", "nothing was started"


async def test_bad_usage_leaves_stdout_empty_with_lines(place: Place) -> None:
    done = await place.run("run", "x", "--nonsense", "--jsonl")
    assert (done.code, done.out) == (2, "")


async def test_two_forms_at_once_are_bad_usage(place: Place) -> None:
    done = await place.quick("run", "x", "--json", "--jsonl")
    assert done.code == 2 and "not allowed with" in done.document["error"]


@pytest.mark.parametrize(("number", "form"), [(signal.SIGINT, "--json"), (signal.SIGTERM, "--jsonl")])
async def test_a_signal_stops_the_run_and_is_130(place: Place, number: signal.Signals, form: str) -> None:
    async with StrictChat([Odd(Reply(text="one two three"), stall_after=1)]) as fake:
        process = await place.start("run", "hello", *model_options(fake), form)
        async with asyncio.timeout(PATIENCE):
            events = process.stderr if form == "--json" else process.stdout
            assert events is not None
            while b"turn_started" not in await events.readline():
                pass
            process.send_signal(number)
            out, err = await process.communicate()
    assert process.returncode == 130
    end = json.loads(out.splitlines()[-1])
    assert end["reason"] == "cancelled"
    if form == "--json":
        assert end["status"] == "cancelled" and out.count(b"\n") == 1
    else:
        assert end["type"] == "run_finished" and err == b""


async def test_time_that_is_up_is_three(place: Place) -> None:
    def slow(body: dict[str, Any]) -> Reply | Odd:
        return Odd(Reply(text="one two three"), stall_after=1) if offers(body) else Reply(text="I did not get far.")

    async with StrictChat(slow) as fake:
        done = await place.run("run", "hello", *model_options(fake), "--timeout", "0.5", "--json")
    assert done.code == 3 and done.document["reason"] == "time_limit"


async def test_the_objective_may_come_from_stdin_with_files_and_images(place: Place, tmp_path: Path) -> None:
    (place.work / "notes.txt").write_text("the answer is 7")
    picture = tmp_path / "dot.png"
    picture.write_bytes(b"\x89PNG\r\n\x1a\n" + b"0" * 20)
    async with StrictChat([Reply(text="seven")]) as fake:
        done = await place.run(
            "run",
            "-",
            *model_options(fake),
            "--image",
            str(picture),
            stdin="read @notes.txt, and mail me@example.org\n",
        )
        content = fake.seen[-1].body["messages"][-1]["content"]
    assert (done.code, done.out) == (0, "seven\n")
    texts = [part["text"] for part in content if part["type"] == "text"]
    assert "me@example.org" in texts[0] and "the answer is 7" in texts[1]
    assert any(part["type"] == "image_url" for part in content)


async def test_a_workspaces_file_narrows_the_run_and_what_it_asks_too_much_is_said(place: Place) -> None:
    (place.work / ".treadle").mkdir()
    (place.work / ".treadle" / "config.toml").write_text('access = "read-only"\nbase_url = "http://127.0.0.1:9"\n')
    async with StrictChat([ASKED, Reply(text="no")]) as fake:
        done = await place.run("run", "write", *model_options(fake), "--yes", "--json")
    assert golden(done)["calls"] == [{"tool": "write_file", "status": "denied"}]
    assert any(line["type"] == "log" and "base_url is ignored" in line["message"] for line in done.log_lines)


async def test_a_session_goes_on_by_name_with_all_that_was_said(place: Place) -> None:
    async with StrictChat([Reply(text="Hello Ada."), Reply(text="You are Ada.")]) as fake:
        await place.run("run", "I am Ada", *model_options(fake), "--name", "ada")
        done = await place.run("run", "who am I?", "--session", "ada", *model_options(fake), "--jsonl")
        said = [message["content"] for message in fake.seen[-1].body["messages"]]
    assert done.code == 0 and "I am Ada" in said and "who am I?" in said
    lines = check_lines(done)
    assert lines[1]["type"] == "message_received" and lines[1]["seq"] > 2


async def test_a_session_keeps_the_model_it_had_last_and_a_flag_has_the_last_word(place: Place) -> None:
    async with StrictChat([Reply(text="Hello."), Reply(text="Me again.")]) as fake:
        await place.run("run", "hello", *model_options(fake), "--name", "one")
        log = SqliteLog(place.home / ".local/share/treadle/treadle.db")
        try:
            (info,) = (await log.list_sessions(SessionQuery())).sessions
            await log.post(info.id, [SessionConfigured(model="xai:grok")], wake=False)
        finally:
            await log.close()
        kept = await place.quick("run", "who?", "--session", "one")
        flagged = await place.run("run", "who?", "--session", "one", *model_options(fake))
    assert kept.code == 2 and "XAI_API_KEY" in kept.err
    assert (flagged.code, flagged.out) == (0, "Me again.\n")


async def test_nothing_to_take_up_is_said(place: Place) -> None:
    async with StrictChat([Reply(text="done")]) as fake:
        await place.run("run", "hello", *model_options(fake), "--name", "one")
        done = await place.run("run", "--session", "one", *model_options(fake))
    assert done.code == 2 and "nothing in this session is unfinished" in done.err


async def test_a_terminal_that_cannot_show_a_sign_does_not_end_the_run(place: Place) -> None:
    old = {"PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"}
    async with StrictChat([call_tool("calculate", expression="1+1"), Reply(text="→ zwei")]) as fake:
        done = await place.run("run", "add", *model_options(fake), env=old)
        document = await place.run("run", "add", *model_options(fake), "--json", env=old)
    assert (done.code, done.out) == (0, "? zwei\n")
    assert document.document["answer"] == "→ zwei", "a document is UTF-8 whatever the terminal is"
