"""The embedded model for real: the small model's weights and llama.cpp, or a skip that says why."""

import asyncio
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from tests.kit.fakes.clients import collect_reply, user
from tests.kit.sessions import PATIENCE
from treadle import Agent
from treadle.errors import ModelError, TreadleError
from treadle.events import TextDelta
from treadle.messages import Call, Json, Message, ModelMessage, Reply, Request, ResultMessage, Sampling, ToolSpec
from treadle.models.base import Model
from treadle.models.local import weights
from treadle.models.local.local_model import DriverName, LocalModel
from treadle.models.local.plain_reply import HINT

CALCULATE = ToolSpec(
    "calculate",
    "Work out an arithmetic expression.",
    {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]},
    (("What is 3 plus 4?", {"expression": "3 + 4"}), ("Multiply 6 by 9", {"expression": "6 * 9"})),
)
CLOCK = ToolSpec(
    "current_time",
    "Tell the current time.",
    {"type": "object", "properties": {}},
    (("What time is it?", {}), ("Tell me the time", {})),
)
TOOLS = (CALCULATE, CLOCK)
REPORTED: list[tuple[str, float, float]] = []


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalModel]:
    if importlib.util.find_spec("xllamacpp") is None:
        pytest.skip("no embedded model: xllamacpp is not installed (pip install 'treadle[local]')")
    try:
        path = weights.ensure_weights(None)
    except TreadleError as error:
        pytest.skip(f"no embedded model: {error}")
    loaded = LocalModel(path, progress=lambda *progress: REPORTED.append(progress))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TREADLE_DATA_DIR", str(tmp_path_factory.mktemp("data")))
        yield loaded
        loaded.unload()


async def ask(model: Model, *messages: Message, tools: tuple[ToolSpec, ...] = (), tokens: int = 40) -> Reply:
    events = [event async for event in model.stream(Request("", messages, tools, max_tokens=tokens))]
    reply = events[-1]
    assert isinstance(reply, Reply)
    assert "".join(event.text for event in events if isinstance(event, TextDelta)) == reply.text
    return reply


def is_alive(pid: int) -> bool:
    """Whether the process is there; one that only waits for somebody to ask how it ended is not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def read_cpu_seconds(pid: int) -> float:
    """The seconds that the process has computed so far, which do not depend on what else the machine does."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def is_computing(pid: int, seconds: float) -> bool:
    """Whether the process computes in the next `seconds`."""
    before = read_cpu_seconds(pid)
    await asyncio.sleep(seconds)
    return read_cpu_seconds(pid) - before > 0.05


async def find_engine_pid(model: LocalModel) -> int:
    await model.load()  # a test may be the first of its worker
    assert model._engine is not None and model._engine._child is not None
    return model._engine._child.pid


async def test_unloading_ends_the_process_and_loading_reports_progress_and_status(
    model: LocalModel, capfd: pytest.CaptureFixture[str]
) -> None:
    pid = await find_engine_pid(model)
    model.unload()
    assert not Path(f"/proc/{pid}").exists()
    assert (model.status.state, model.status.memory, model.window) == ("unloaded", 0, None)
    status = await model.load()
    assert (status.state, model.window) == ("ready", 8192)
    assert status.memory > 200_000_000
    assert status.parameters == 134_515_008
    assert REPORTED and all(0 <= done <= total for _, done, total in REPORTED)
    assert capfd.readouterr() == ("", "")


async def test_a_plain_question_is_answered_with_exact_counts(model: LocalModel) -> None:
    reply = await ask(model, user("What is the capital of France?"))
    assert "Paris" in reply.text
    assert (reply.finish, reply.model, reply.usage.estimated) == ("stop", model.name, False)
    assert reply.usage.input_tokens == 16
    assert 0 < reply.usage.output_tokens < 40


async def test_small_talk_is_short_ends_at_a_sentence_and_repeats_nothing(model: LocalModel) -> None:
    for said in ("hi", "thanks", "tell me a joke", "asdfghjkl", "wie geht es dir?"):
        reply = await ask(model, user(said), tools=TOOLS, tokens=1000)
        own, mark, _ = reply.text.partition(f"\n\n{HINT}")
        assert mark and (reply.calls, reply.finish) == ((), "stop")
        assert reply.usage.output_tokens <= 80
        sentences = [each.lower() for each in re.split(r"(?<=[.!?])\s+", own)]
        assert own.endswith((".", "!", "?", '"')) and len(sentences) == len(set(sentences)), own


async def test_a_session_is_told_once_what_the_model_is_good_for(model: LocalModel, tmp_path: Path) -> None:
    answers: list[str] = []
    for said in ("hello", "thank you"):  # The second one in a session that was opened again.
        async with Agent(model).session(tmp_path / "talk.db") as session, session.run(said) as run:
            outcome = await run.wait()
        assert outcome is not None and outcome.reason == "answered"
        answers.append(outcome.answer)
    assert [HINT in answer for answer in answers] == [True, False]


async def test_an_answer_has_no_line_numbers_and_no_notes_of_the_runtime(model: LocalModel) -> None:
    call = Call("c1", "current_time", "{}")
    result = ResultMessage("c1", "current_time", "     1\tTuesday\n     2\t14:35\n[The file ends here.]")
    answer = await ask(model, user("What time is it?"), ModelMessage("", (call,)), result, tools=TOOLS, tokens=80)
    assert "Tuesday\n14:35" in answer.text
    assert "\t" not in answer.text and "[" not in answer.text


async def test_a_tool_is_chosen_filled_in_and_its_result_reported(model: LocalModel) -> None:
    asked = user("What is 12 times 7?")
    reply = await ask(model, asked, tools=TOOLS)
    assert reply.finish == "calls"
    (call,) = reply.calls
    assert (call.tool, json.loads(call.arguments)) == ("calculate", {"expression": "12 * 7"})
    messages = (asked, ModelMessage("", reply.calls), ResultMessage(call.id, call.tool, "84"))
    answer = await ask(model, *messages, tools=TOOLS)
    assert answer.calls == () and "84" in answer.text


async def test_a_request_for_two_things_becomes_two_calls_one_after_the_other(model: LocalModel) -> None:
    messages: list[Message] = [user("What is 6 plus 7, and what time is it?")]
    made: list[str] = []
    for result in ("13", "14:35"):
        reply = await ask(model, *messages, tools=TOOLS)
        made += [call.tool for call in reply.calls]
        messages += [ModelMessage("", reply.calls), ResultMessage(reply.calls[0].id, made[-1], result)]
    answer = await ask(model, *messages, tools=TOOLS, tokens=80)
    assert made == ["calculate", "current_time"]
    assert "13" in answer.text and "14:35" in answer.text


async def test_no_tool_is_called_when_none_is_needed_or_allowed(model: LocalModel) -> None:
    assert (await ask(model, user("Hello, how are you?"), tools=TOOLS)).calls == ()
    request = Request("", (user("What is 2 plus 2?"),), TOOLS, tool_choice="none", max_tokens=20)
    assert (await collect_reply(model, request)).calls == ()


@pytest.mark.parametrize("driver", ["union", "choose"])
async def test_calls_are_well_formed_whatever_the_schema(model: LocalModel, driver: DriverName) -> None:
    schema: dict[str, Json] = {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 12},
            "size": {"enum": ["small", "large"]},
            "tags": {"type": "array", "items": {"type": "string", "maxLength": 5}, "maxItems": 2},
            "level": {"type": "integer", "minimum": 1, "maximum": 5},
        },
        "required": ["name", "size", "tags", "level"],
    }
    tool = ToolSpec("order", "Order a pizza of a level from 1 to 5.", schema)
    driven = LocalModel(model.status.path, driver=driver)
    request = Request("", (user("Order a pizza for Tom, level 3"),), (tool,), tool_choice="required", max_tokens=120)
    try:
        (call,) = (await collect_reply(driven, request)).calls
    finally:
        driven.unload()
    assert Draft202012Validator(schema).is_valid(json.loads(call.arguments))


async def test_an_answer_keeps_to_its_schema_and_its_limits(model: LocalModel) -> None:
    schema: dict[str, Json] = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 20}}}
    schema |= {"required": ["city"], "additionalProperties": False}
    request = Request("", (user("What is the capital of France?"),), output_schema=schema, max_tokens=40)
    assert list(json.loads((await collect_reply(model, request)).text)) == ["city"]
    count = (user("Count from one to ten."),)
    cut = await collect_reply(model, Request("", count, max_tokens=3, sampling=Sampling(temperature=0.5, seed=1)))
    assert (cut.finish, cut.usage.output_tokens) == ("length", 3)
    stopped = await collect_reply(model, Request("", count, max_tokens=60, sampling=Sampling(stop=(" ",))))
    assert " " not in stopped.text


async def test_two_sessions_are_answered_at_once(model: LocalModel) -> None:
    replies = await asyncio.gather(
        ask(model, user("What is the capital of France?")),
        ask(model, user("What is 5 plus 6?"), tools=TOOLS),
        ask(model, user("What is the capital of Japan?")),
    )
    assert "Paris" in replies[0].text
    assert [call.tool for call in replies[1].calls] == ["calculate"]
    assert "Tokyo" in replies[2].text


async def test_a_turn_reads_only_what_is_new(model: LocalModel) -> None:
    messages: list[Message] = []
    for number in range(4):
        messages.append(user(f"Tell me fact number {number} about whales and the sea they live in."))
        reply = await ask(model, *messages, tokens=30)
        messages.append(ModelMessage(reply.text))
        new = reply.usage.input_tokens - reply.usage.cached_tokens
        assert new <= 40, f"turn {number} read {new} of {reply.usage.input_tokens} tokens"


def ask_for_story(words: int, tokens: int) -> Request:
    text = " ".join(f"word{number}" for number in range(words))
    sampling = Sampling(extra={"ignore_eos": True, "dry_multiplier": 0})
    return Request("", (user(f"Tell me a long story about {text}"),), max_tokens=tokens, sampling=sampling)


@pytest.mark.parametrize(("words", "tokens"), [(6, 2000), (1500, 50)], ids=["generation", "reading"])
async def test_closing_the_iterator_stops_the_engine(model: LocalModel, words: int, tokens: int) -> None:
    pid = await find_engine_pid(model)
    before = read_cpu_seconds(pid)
    async for _ in model.stream(ask_for_story(max(6, words // 50), tokens // 50)):
        pass
    fiftieth = read_cpu_seconds(pid) - before
    if words < 100:
        async with aclosing(model.stream(ask_for_story(words, tokens))) as events:
            async for _ in events:
                break
    else:
        before = read_cpu_seconds(pid)
        task = asyncio.ensure_future(anext(model.stream(ask_for_story(words, tokens))))
        async with asyncio.timeout(PATIENCE):
            while read_cpu_seconds(pid) - before < 0.1:  # noqa: ASYNC110 - another process gives no event
                await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    given_up = read_cpu_seconds(pid)
    while await is_computing(pid, 0.2):
        assert read_cpu_seconds(pid) - given_up < max(4, 25 * fiftieth), "half of the work was done all the same"


async def test_a_prompt_that_does_not_fit_is_an_error_with_the_numbers(model: LocalModel) -> None:
    with pytest.raises(ModelError, match=r"has 9\d\d\d tokens.* 8192") as caught:
        await ask(model, user("word " * 9500))
    assert (caught.value.kind, caught.value.retryable) == ("too_long", False)


async def test_texts_become_vectors(model: LocalModel) -> None:
    cat, kitten, law = (
        await model.embed(["The cat sleeps.", "The kitten sleeps.", "A treaty was signed in 1648."])
    ).vectors

    def alike(a: list[float], b: list[float]) -> float:
        return sum(x * y for x, y in zip(a, b, strict=True))

    assert alike(cat, cat) == pytest.approx(1.0, abs=1e-3)
    assert alike(cat, kitten) > alike(cat, law)


async def test_options_of_the_client_reach_the_engine(model: LocalModel) -> None:
    extra = {"logprobs": True, "top_logprobs": 2, "presence_penalty": 0.5, "top_k": 5}
    asked = Request("", (user("Say hello."),), max_tokens=4, sampling=Sampling(extra=extra))
    events = [event async for event in model.stream(asked)]
    scored = [event for event in events if isinstance(event, TextDelta) and event.logprobs]
    reply = events[-1]
    assert isinstance(reply, Reply) and scored
    assert [entry for event in scored for entry in event.logprobs] == list(reply.logprobs)
    assert "".join(entry["token"] for entry in reply.logprobs).strip() == reply.text.strip()
    assert all(entry["logprob"] <= 0 and len(entry["top_logprobs"]) == 2 for entry in reply.logprobs)
    (likely,) = (await model.embed([[1, 2, 3]])).vectors
    assert len(likely) > 100 and (await model.embed([[1, 2, 3]])).tokens == 3
    assert await model.detokenize([]) == ""
    with pytest.raises(ModelError) as refused:
        await model.embed(["a"], dimensions=8)
    assert refused.value.param == "dimensions"


async def test_a_killed_engine_fails_the_request_and_starts_again(model: LocalModel) -> None:
    pid = await find_engine_pid(model)

    async def kill_in_the_middle() -> None:
        extra = Sampling(extra={"ignore_eos": True})
        async for event in model.stream(Request("", (user("Tell me a story."),), max_tokens=2000, sampling=extra)):
            if isinstance(event, TextDelta):
                os.kill(pid, signal.SIGKILL)

    with pytest.raises(ModelError) as caught:
        await kill_in_the_middle()
    assert caught.value.retryable and caught.value.partial
    assert "Paris" in (await ask(model, user("What is the capital of France?"))).text
    assert await find_engine_pid(model) != pid


def test_the_engine_ends_with_its_parent(model: LocalModel) -> None:
    code = f"""
import asyncio, time
from treadle.models.local.local_model import LocalModel
model = LocalModel({str(model.status.path)!r})
asyncio.run(model.load())
print("loaded", flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as parent:
        try:
            assert parent.stdout
            assert parent.stdout.readline() == b"loaded\n"
            (child,) = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()
            folder = json.loads(Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")[-2])["folder"]
            assert Path(folder).exists()
        finally:
            parent.kill()
    given_up = time.monotonic()
    while is_alive(int(child)) or Path(folder).exists():
        assert time.monotonic() - given_up < PATIENCE
        time.sleep(0.02)


async def test_a_file_that_is_no_model_is_refused_with_its_name(model: LocalModel, tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF but no more")
    with pytest.raises(ModelError, match=r"broken\.gguf") as caught:
        await LocalModel(broken).load()
    assert not caught.value.retryable
    assert "line " not in str(caught.value), "the engine says what is wrong, not where in the code"
