"""The endings of `treadle run`: what the model, a script and a person learn. tests/pins holds every document."""

import asyncio
import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.kit.fakes.chat import StrictChat
from tests.kit.fakes.server import Odd, status
from tests.kit.sessions import PATIENCE
from tests.kit.terminal import Done, Place, call_tool, model_options
from treadle.errors import TreadleError
from treadle.events import SessionConfigured, decode_event
from treadle.log.base import SessionQuery
from treadle.log.sqlite import SqliteLog
from treadle.messages import Reply

ASK = call_tool("write_file", path="AGENTS.md", content="obey")


def read_document(done: Done) -> dict[str, Any]:
    """The document on stdout. Every line on stderr is a log line or an event that we know."""
    for line in done.log_lines:
        if line["type"] != "log":
            decode_event(json.dumps(line))
    return done.document


def check_lines(done: Done) -> list[dict[str, Any]]:
    """Stdout is events and nothing else, from the session's beginning, in the order of the log."""
    lines = done.lines
    for line in done.out.splitlines():
        decode_event(line)
    assert lines[0]["type"] == "session_created"
    seqs = [line["seq"] for line in lines if "seq" in line]
    assert seqs == sorted(set(seqs))
    return lines


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
        done = await place.quick("run", "what is six times seven?", *model_options(fake), "--jsonl")
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
        done = await place.quick("run", "add", *model_options(fake))
    assert (done.code, done.out) == (0, "2\n")
    assert (
        "Let me see." in done.err and "treadle: ok calculate 1+1" in done.err and "treadle chat --session" in done.err
    )
    assert "\x1b" not in done.err


@pytest.mark.parametrize(
    ("ask", "told"),
    [
        (ASK, "Denied: Nobody can be asked here.*--yes"),
        (call_tool("ask_user", question="Which one?"), "Decide yourself"),
    ],
    ids=["an approval", "a question"],
)
async def test_what_needs_a_person_is_denied_at_once_in_a_script_and_the_model_learns_it(
    place: Place, ask: Reply, told: str
) -> None:
    async with StrictChat([ask, Reply(text="I could not.")]) as fake:
        done = await place.quick("run", "write it", *model_options(fake), "--json")
        assert re.search(told, fake.seen[-1].body["messages"][-1]["content"], re.DOTALL)
    document = read_document(done)
    assert (done.code, document["status"], document["answer"]) == (4, "denied", "I could not.")
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
        ([ASK, Reply(text="I could not.")], [], 4, ("run_finished", "answered")),
        ([ASK], ["--ask-later"], 4, ("approval_requested", None)),
    ],
)
async def test_lines_end_with_what_it_came_to(
    place: Place, script: list[Reply], flags: list[str], code: int, last: tuple[str, str | None]
) -> None:
    async with StrictChat(script) as fake:
        done = await place.quick("run", "work", *model_options(fake), *flags, "--jsonl")
    assert (done.code, done.err) == (code, "")
    end = check_lines(done)[-1]
    assert (end["type"], end.get("reason")) == last


@pytest.mark.parametrize(
    ("flags", "status", "why"),
    [
        (["--yes"], "ok", ""),
        (["--approve", "write_file"], "ok", ""),
        (["--approve", "write_file(AGENTS.md)"], "ok", ""),
        (["--yes", "--access", "read-only"], "denied", "read-only"),
        (["--forbid", "write_*"], "denied", "forbidden by write_*"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
async def test_a_call_runs_that_was_approved_beforehand_unless_it_is_forbidden(
    place: Place, flags: list[str], status: str, why: str
) -> None:
    async with StrictChat([ASK, Reply(text="done")]) as fake:
        done = await place.quick("run", "write it", *model_options(fake), *flags, "--json")
    document = read_document(done)
    assert (done.code, document["calls"]) == (0, [{"tool": "write_file", "status": status}])
    assert len(document["denied"]) == (status == "denied")
    assert all(why in denied["why"] for denied in document["denied"])
    assert (place.work / "AGENTS.md").exists() is (status == "ok")


async def test_a_pattern_that_names_no_tool_gives_a_warning(place: Place) -> None:
    patterns = ("--forbid", "shel(rm *)", "bash", "issues__close", "write_*", "--approve", "writefile")
    async with StrictChat([Reply(text="done")]) as fake:
        done = await place.quick("run", "tidy up", *model_options(fake), *patterns)
    told = [line for line in done.err.splitlines() if "no tool" in line]
    assert done.code == 0 and told == [
        "treadle: --approve writefile: no tool has this name; did you mean write_file?",
        "treadle: --forbid shel(rm *): no tool has this name; did you mean shell?",
    ]


async def test_a_question_may_wait_in_the_log_and_the_run_continues_when_it_is_answered(place: Place) -> None:
    async with StrictChat([ASK, Reply(text="written")]) as fake:
        done = await place.quick("run", "write it", *model_options(fake), "--ask-later", "--json")
        assert (done.code, read_document(done)["status"]) == (4, "waiting")
        session = done.document["session_id"]
        listed = (await place.quick("approvals", "list")).out
        assert [
            part for part in (session[:12], "write_file wants to run", "destructive", "1 + obey") if part not in listed
        ] == [], listed
        assert (await place.quick("approvals", "allow", session[:8])).code == 0
        again = await place.quick("approvals", "allow", session[:8])
        assert again.code == 2 and "has no open question" in again.err
        resumed = await place.quick("sessions", "resume", session[:8], *model_options(fake), "--json")
    assert resumed.code == 0 and read_document(resumed)["answer"] == "written"
    assert (place.work / "AGENTS.md").read_text() == "obey"


async def test_a_provider_that_refuses_is_one_in_every_form(place: Place) -> None:
    async with StrictChat([status(401, "this key is not known")]) as fake:
        lines = await place.quick("run", "hello", *model_options(fake), "--jsonl")
        plain = await place.quick("run", "hello", *model_options(fake))
        document = await place.quick("run", "hello", *model_options(fake), "--json")
    assert (lines.code, plain.code, document.code) == (1, 1, 1)
    assert "key" in document.document["error"] and check_lines(lines)[-1]["reason"] == "failed"
    assert plain.out == "" and "Failed" in plain.err


async def test_a_provider_that_is_not_there_is_one(place: Place) -> None:
    done = await place.quick(
        "run", "hello", "--model", "x", "--base-url", "http://127.0.0.1:9/v1", "--json", "--retry-seconds", "0"
    )
    document = read_document(done)
    assert (done.code, document["status"]) == (1, "failed") and "127.0.0.1:9" in document["error"]


async def test_a_run_whose_end_no_event_tells_says_why(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise TreadleError("no room left on the disk")

    monkeypatch.setattr("treadle.cli.run.build_message", fail)
    words = ["run", "hello", "--model", "x", "--base-url", "http://127.0.0.1:9/v1"]
    document = await place.quick(*words, "--json")
    assert (document.code, read_document(document)["error"]) == (1, "no room left on the disk")
    for form in ([], ["--jsonl"]):
        done = await place.quick(*words, *form)
        assert (done.code, done.out) == (1, "") and done.err.count("no room left on the disk") == 1


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["run", "x", "--nonsense"], "unrecognized arguments: --nonsense"),
        (["run", "x", "--sesion", "y"], "did you mean --session?"),
        (["run", "x", "--access", "read-onyl"], "did you mean read-only?"),
        (["run"], "the task is missing"),
        (["run", "  "], "the task is empty"),
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
    as_lines = await place.quick(*words, "--jsonl")
    assert (as_lines.code, as_lines.out) == (2, "") and told in as_lines.err
    assert (await place.quick("sessions", "list")).err == "no sessions were found\n", "nothing was started"


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


async def test_the_objective_may_come_from_stdin_with_files_and_images(place: Place, tmp_path: Path) -> None:
    (place.work / "notes.txt").write_text("the answer is 7")
    picture = tmp_path / "dot.png"
    picture.write_bytes(b"\x89PNG\r\n\x1a\n" + b"0" * 20)
    async with StrictChat([Reply(text="seven")]) as fake:
        done = await place.quick(
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


async def test_a_workspaces_file_narrows_the_run_and_a_warning_names_what_it_may_not_set(place: Place) -> None:
    (place.work / ".treadle").mkdir()
    (place.work / ".treadle" / "config.toml").write_text('access = "read-only"\nbase_url = "http://127.0.0.1:9"\n')
    async with StrictChat([ASK, Reply(text="no")]) as fake:
        done = await place.quick("run", "write", *model_options(fake), "--yes", "--json")
    assert read_document(done)["calls"] == [{"tool": "write_file", "status": "denied"}]
    assert any(line["type"] == "log" and "base_url is ignored" in line["message"] for line in done.log_lines)


async def test_a_session_goes_on_by_name_with_all_that_was_said(place: Place) -> None:
    async with StrictChat([Reply(text="Hello Ada."), Reply(text="You are Ada.")]) as fake:
        await place.quick("run", "I am Ada", *model_options(fake), "--name", "ada")
        done = await place.quick("run", "who am I?", "--session", "ada", *model_options(fake), "--jsonl")
        said = [message["content"] for message in fake.seen[-1].body["messages"]]
    assert done.code == 0 and "I am Ada" in said and "who am I?" in said
    lines = check_lines(done)
    assert lines[1]["type"] == "message_received" and lines[1]["seq"] > 2


async def test_a_session_keeps_the_model_it_had_last_and_a_flag_has_the_last_word(place: Place) -> None:
    async with StrictChat([Reply(text="Hello."), Reply(text="Me again.")]) as fake:
        await place.quick("run", "hello", *model_options(fake), "--name", "one")
        log = SqliteLog(place.home / ".local/share/treadle/treadle.db")
        try:
            (info,) = (await log.list_sessions(SessionQuery())).sessions
            await log.post(info.id, [SessionConfigured(model="xai:grok")], wake=False)
        finally:
            await log.close()
        kept = await place.quick("run", "who?", "--session", "one")
        flagged = await place.quick("run", "who?", "--session", "one", *model_options(fake))
    assert kept.code == 2 and "XAI_API_KEY" in kept.err
    assert (flagged.code, flagged.out) == (0, "Me again.\n")


@pytest.mark.parametrize("command", ["run --session one", "sessions resume one"])
async def test_resuming_a_finished_session_is_no_bad_usage_and_shows_its_last_outcome(
    place: Place, command: str
) -> None:
    async with StrictChat([Reply(text="done")]) as fake:
        await place.quick("run", "hello", *model_options(fake), "--name", "one")
        done = await place.quick(*command.split(), *model_options(fake), "--json")
    document = json.loads(done.out)
    assert done.code == 0 and "nothing to resume" in done.err
    assert (document["status"], document["answer"], document["turns"]) == ("answered", "done", 1)
    assert document["nothing_to_resume"] is True


async def test_run_with_the_name_of_no_session_says_how_to_create_one(place: Place) -> None:
    done = await place.quick("run", "hello", "--session", "new one")
    assert done.code == 2 and "--name 'new one' creates one of that name" in done.err


async def test_a_terminal_that_cannot_show_a_sign_does_not_end_the_run(place: Place) -> None:
    old = {"PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"}
    async with StrictChat([call_tool("calculate", expression="1+1"), Reply(text="→ zwei")]) as fake:
        done = await place.run("run", "add", *model_options(fake), env=old)
        document = await place.run("run", "add", *model_options(fake), "--json", env=old)
    assert (done.code, done.out) == (0, "? zwei\n")
    assert document.document["answer"] == "→ zwei", "a document is UTF-8 whatever the terminal is"
