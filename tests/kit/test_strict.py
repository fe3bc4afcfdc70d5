"""The strict checker finds every fault that it is made for."""

import pytest

from tests.kit.strict import StrictModel, check_request
from treadle.errors import ModelError
from treadle.messages import (
    Call,
    ImagePart,
    Message,
    ModelMessage,
    Reply,
    Request,
    ResultMessage,
    TextPart,
    ToolSpec,
    UserMessage,
)
from treadle.testing import ScriptedModel

ASK = UserMessage((TextPart("do it"),))
A, B = Call("a", "look"), Call("b", "look")
SAY, CALL, BOTH = ModelMessage("Done."), ModelMessage("", (A,)), ModelMessage("I look.", (A, B))
OF_A, OF_B = ResultMessage("a", "look", "seen"), ResultMessage("b", "look", "seen")


def request(*messages: Message) -> Request:
    return Request(system="", messages=messages)


@pytest.mark.parametrize(
    "messages",
    [
        [ASK],
        [ASK, ASK],
        [UserMessage((ImagePart("aGk="),))],
        [ASK, SAY, ASK],
        [ASK, CALL, OF_A],
        [ASK, BOTH, OF_A, OF_B, SAY, ASK],
    ],
)
def test_a_good_request_passes(messages: list[Message]) -> None:
    check_request(request(*messages))


@pytest.mark.parametrize(
    ("messages", "why"),
    [
        ([], "no messages"),
        ([SAY, ASK], "first message is not a user's"),
        ([ASK, SAY], "last message is the model's"),
        ([ASK, OF_A], "answers no open call"),
        ([ASK, CALL, ASK], r"calls \['a'\] have no result before"),
        ([ASK, BOTH, OF_A], r"calls \['b'\] at the end have no result"),
        ([ASK, BOTH, OF_B, OF_A], "stands where that of look 'a' belongs"),
        ([ASK, CALL, OF_A, OF_A], "answers no open call"),
        ([ASK, CALL, ResultMessage("a", "write", "seen")], "belongs"),
        ([ASK, CALL, OF_A, CALL, OF_A], "'a' is used twice"),
        ([ASK, ModelMessage("", (A, A)), OF_A, OF_A], "'a' is used twice"),
        ([ASK, ModelMessage("", (Call("", "look"),)), ResultMessage("", "look", "seen")], "has no id"),
        ([ASK, SAY, SAY, ASK], "two model messages"),
        ([ASK, ModelMessage(" "), ASK], "neither text nor calls"),
        ([UserMessage(())], "user's message is empty"),
        ([UserMessage((TextPart("\n"),))], "user's message is empty"),
        ([ASK, CALL, ResultMessage("a", "look", "")], "result of 'a' has no text"),
        ([UserMessage((TextPart("\ud800"),))], "cannot be written as JSON"),
    ],
)
def test_a_bad_request_is_refused_with_the_reason(messages: list[Message], why: str) -> None:
    with pytest.raises(AssertionError, match=why):
        check_request(request(*messages))


def test_two_tools_with_one_name_are_refused() -> None:
    spec = ToolSpec("look", "", {})
    with pytest.raises(AssertionError, match="same name"):
        check_request(Request(system="", messages=[ASK], tools=(spec, spec)))


async def ask(model: StrictModel, request: Request) -> Reply:
    events = [event async for event in model.stream(request)]
    assert isinstance(events[-1], Reply)
    return events[-1]


async def test_the_strict_model_passes_good_requests_on() -> None:
    model = StrictModel(ScriptedModel("Fine.", name="inner"))
    assert (await ask(model, request(ASK))).text == "Fine."
    assert (model.name, model.window, len(model.requests), model.violations) == ("inner", None, 1, [])


async def test_the_strict_model_refuses_and_remembers_bad_requests() -> None:
    model = StrictModel(ScriptedModel("Fine."))
    with pytest.raises(ModelError, match="answers no open call") as refused:
        await ask(model, request(ASK, OF_A))
    assert refused.value.kind == "bad_request" and not refused.value.retryable
    assert len(model.violations) == 1 and model.requests == []


async def test_the_strict_model_refuses_changed_history() -> None:
    cache: dict[str, object] = {}
    model = StrictModel(ScriptedModel("One.", "Two.", "Three."))
    await ask(model, Request(system="", messages=[ASK], render_cache=cache))
    await ask(model, Request(system="", messages=[ASK, SAY, ASK], render_cache=cache))
    other = UserMessage((TextPart("do that"),))
    with pytest.raises(ModelError, match="message 0 was"):
        await ask(model, Request(system="", messages=[other, SAY, ASK], render_cache=cache))
    with pytest.raises(ModelError, match="3 messages in the request before, now 1"):
        await ask(model, Request(system="", messages=[ASK], render_cache=cache))
    assert (await ask(model, Request(system="", messages=[other], render_cache={}))).text == "Three."
