"""A command asks for a host while it runs: at a terminal, from another process, and where nobody can be asked."""

from pathlib import Path

import pytest

from tests.kit.fakes.chat import StrictChat
from tests.kit.terminal import Place, call_tool, model_options
from treadle.events import ApprovalAnswered, ApprovalRequested, CallFinished
from treadle.messages import Reply
from treadle.sandbox.backend import probe

pytestmark = pytest.mark.skipif(probe().level != "bubblewrap", reason="NOT TESTED, the full sandbox does not work here")

COMMAND = "python3 fetch.py http://site.invalid/"
FETCH = call_tool("shell", command=COMMAND)
REPLIES = [FETCH, Reply(text="done")]
PROGRAM = """
import sys, urllib.request
try: urllib.request.urlopen(sys.argv[1], timeout=600)
except Exception as error: print("FAILED", error, getattr(error, "read", bytes)().decode())
"""
RULE = "network(site.invalid)"


@pytest.fixture(autouse=True)
def program(place: Place) -> None:
    (place.work / "fetch.py").write_text(PROGRAM)


async def read_result(place: Place) -> str:
    (result,) = (fact for fact in await place.facts() if isinstance(fact, CallFinished))
    return result.output


async def read_answers(place: Place) -> list[tuple[str, str]]:
    return [(fact.decision, fact.scope) for fact in await place.facts() if isinstance(fact, ApprovalAnswered)]


async def test_where_nobody_can_be_asked_the_run_ends_with_4_and_says_why(place: Place) -> None:
    async with StrictChat(REPLIES) as fake:
        done = await place.run("run", "go", *model_options(fake), "--json")
    assert (done.code, done.document["status"]) == (4, "denied")
    (denied,) = done.document["denied"]
    assert (denied["tool"], denied["rule"]) == ("network", RULE)
    assert done.document["calls"] == [{"tool": "shell", "status": "ok"}]
    told = await read_result(place)
    assert "site.invalid:80 was not reached" in told and f"--approve '{RULE}'" in told
    assert "registries" not in told
    (question,) = (line for line in done.log_lines if line["type"] == "approval_requested")
    assert question["during"] == "call_1" and question["call_id"] != "call_1"


async def test_one_setting_is_named_if_the_host_is_a_package_registry(place: Place) -> None:
    ask = call_tool("shell", command="python3 fetch.py http://pypi.org/")
    async with StrictChat([ask, Reply(text="done")]) as fake:
        await place.run("run", "go", *model_options(fake), "--json")
    assert 'network = "registries" in the configuration' in await read_result(place)


@pytest.mark.parametrize(
    ("options", "setting", "told"),
    [
        (("--approve", RULE), "", "It has no address."),
        (("--yes",), "", "It has no address."),
        (("--allow-host", "site.invalid"), "", "It has no address."),
        ((), f'approve = ["{RULE}"]', "It has no address."),
        (("--forbid", "network(*.invalid)"), "", "Forbidden by network(*.invalid)."),
        (("--yes",), 'forbid = ["network"]', "Forbidden by network."),
    ],
)
async def test_rules_answer_before_anybody_is_asked(
    place: Place, options: tuple[str, ...], setting: str, told: str
) -> None:
    (place.home / ".config/treadle").mkdir(parents=True)
    (place.home / ".config/treadle/config.toml").write_text(setting)
    async with StrictChat(REPLIES) as fake:
        done = await place.quick("run", "go", *model_options(fake), "--json", *options)
    assert done.code == 0 and done.document["denied"] == []
    assert told in await read_result(place) and await place.count(ApprovalRequested) == 0


async def test_a_person_at_the_terminal_allows_a_host_for_good(place: Place) -> None:
    async with StrictChat([*REPLIES, *REPLIES]) as fake:
        async with place.screen("run", "go", *model_options(fake)) as screen:
            text = await screen.until("answer>")
            assert f"`{COMMAND}` wants site.invalid" in text
            assert f"rule    {RULE}\n" in text and "p  yes, and the rule for this session\n" in text
            assert "a  yes, and the rule for this folder, always\n" in text and "  t  " not in text
            screen.type("t\n")
            await screen.until("answer y, p, a, n or l")
            screen.type("a\n")
            await screen.until("done")
            assert await screen.end() == 0
        assert await read_answers(place) == [("allow", "pattern")]
        rules = await place.quick("approvals", "rules")
        assert RULE in rules.out and str(place.work) in rules.out
        again = await place.quick("run", "go", *model_options(fake), "--json", "--store", ":memory:")
    assert again.code == 0 and "approval_requested" not in again.err


async def test_a_person_at_the_terminal_says_no(place: Place) -> None:
    async with StrictChat(REPLIES) as fake, place.screen("run", "go", *model_options(fake)) as screen:
        await screen.until("answer>")
        screen.type("n not that one\n")
        await screen.until("done")
        assert await screen.end() == 0
    assert "said no. They say: not that one" in await read_result(place)


async def test_a_chat_asks_while_the_command_runs(place: Place) -> None:
    async with StrictChat(REPLIES) as fake, place.screen("chat", *model_options(fake)) as screen:
        screen.type("go\r")
        assert f"`{COMMAND}` wants site.invalid" in await screen.until("Esc stops the run")
        screen.type("y")
        await screen.until("done")
        assert await screen.leave() == 0
    assert await read_answers(place) == [("allow", "call")]


async def test_ctrl_c_at_the_question_stops_the_run_and_leaves_no_question(place: Place) -> None:
    async with StrictChat(REPLIES) as fake, place.screen("run", "go", *model_options(fake)) as screen:
        await screen.until("answer>")
        screen.type("\x03")
        assert await screen.end() == 130
    assert "no open questions" in (await place.quick("approvals", "list")).err


@pytest.mark.parametrize(("word", "decision"), [("allow", "allow"), ("deny", "deny")])
async def test_another_process_lists_and_answers_the_question(place: Place, word: str, decision: str) -> None:
    async with StrictChat(REPLIES) as fake:
        process = await place.start("run", "go", *model_options(fake), "--json", "--ask-later")
        await place.wait_for_fact(ApprovalRequested)
        listed = await place.quick("approvals", "list")
        assert f"`{COMMAND}` wants site.invalid" in listed.out and RULE in listed.out
        session = listed.out.split()[0]
        answered = await place.quick("approvals", word, session)
        assert answered.code == 0, answered
        out, _ = await process.communicate()
    assert process.returncode == 0 and b'"status":"answered"' in out
    assert await read_answers(place) == [(decision, "call")]
    late = await place.quick("approvals", "allow", session)
    assert late.code == 2 and "no open question" in late.err


async def test_an_attached_terminal_answers_the_question(place: Place) -> None:
    async with StrictChat(REPLIES) as fake:
        process = await place.start("run", "go", *model_options(fake), "--json", "--ask-later")
        await place.wait_for_fact(ApprovalRequested)
        session = (await place.quick("approvals", "list")).out.split()[0]
        async with place.screen("attach", session) as screen:
            assert f"`{COMMAND}` wants site.invalid" in await screen.until("Ctrl-C leaves")
            screen.type("y")
            await screen.until("done")
            assert await screen.leave() == 0
        await process.communicate()
    assert await read_answers(place) == [("allow", "call")]


async def test_a_bad_folder_in_the_configuration_is_a_usage_error(place: Place) -> None:
    (place.home / ".config/treadle").mkdir(parents=True)
    (place.home / ".config/treadle/config.toml").write_text('[sandbox]\nread_only = ["~"]\n')
    async with StrictChat(REPLIES) as fake:
        done = await place.quick("run", "go", *model_options(fake))
    assert done.code == 2 and "cannot be given to commands" in done.err


async def test_sandbox_exec_shows_and_opens_folders(place: Place, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "rows").write_text("one\n")
    shell = ("--", "sh", "-c", f"cat {data}/rows; echo two > {data}/new")
    read = await place.run("sandbox", "exec", "--read-only", str(data), *shell)
    assert read.out.startswith("one") and not (data / "new").exists()
    await place.run("sandbox", "exec", "--writable", str(data), *shell)
    assert (data / "new").read_text() == "two\n"
    refused = await place.run("sandbox", "exec", "--writable", str(place.home), *shell)
    assert refused.code == 2 and "cannot be given" in refused.err
