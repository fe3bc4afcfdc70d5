"""The next model takes over when one fails for good before its first word, and not otherwise."""

from contextlib import aclosing

import pytest

from tests.kit.fakes.chat import StrictChat
from tests.kit.fakes.clients import ask, chat_model, collect_failure, collect_reply
from tests.kit.fakes.server import Odd, events, status
from treadle.errors import BadInput, NotFound
from treadle.messages import Reply
from treadle.models.base import Model
from treadle.models.fallback import Fallback, fallback

SECOND = Reply(text="the second")


async def test_the_next_model_answers_when_one_fails_for_good() -> None:
    async with StrictChat([status(401)]) as one, StrictChat([SECOND]) as two:
        model = fallback(chat_model(one, "a"), chat_model(two, "b"))
        assert isinstance(model, Model)
        assert model.name == "fake:a"
        reply = await collect_reply(model, ask("hi"))
        assert (reply.text, reply.model) == ("the second", "b")
        await collect_reply(model, ask("hi"))
        assert (len(one.seen), len(two.seen)) == (1, 2), "one that failed rests for a while"


async def test_the_caller_retries_a_temporary_failure_first() -> None:
    now = [0.0]
    async with StrictChat([status(503), status(503), Reply(text="back")]) as one, StrictChat([SECOND]) as two:
        model = Fallback((chat_model(one), chat_model(two)), clock=lambda: now[0])
        assert (await collect_failure(model)).retryable
        assert (await collect_reply(model, ask("hi"))).text == "the second"
        assert (await collect_reply(model, ask("hi"))).text == "the second"
        now[0] += 61
        assert (await collect_reply(model, ask("hi"))).text == "back"


async def test_a_model_that_has_begun_to_answer_is_not_replaced() -> None:
    chunk = {"choices": [{"index": 0, "delta": {"content": "so far"}}]}
    broken = Odd(raw=events(chunk, *[chunk] * 3), split=60, reset_after=150, pause=0.005)
    async with StrictChat([broken]) as one, StrictChat([SECOND]) as two:
        model = Fallback((chat_model(one), chat_model(two)), patience=1)
        assert (await collect_failure(model)).partial.startswith("so far")
        assert two.seen == []


async def test_when_all_models_fail_the_last_error_is_raised() -> None:
    async with StrictChat([status(401)]) as one, StrictChat([status(402, "no credit")]) as two:
        model = fallback(chat_model(one), chat_model(two))
        for _ in range(2):
            assert (await collect_failure(model)).kind == "quota"
        assert (len(one.seen), len(two.seen)) == (2, 2)


async def test_the_next_model_takes_over_at_once_when_a_provider_asks_for_a_long_wait() -> None:
    async with StrictChat([status(429, retry_after="300")]) as one, StrictChat([SECOND]) as two:
        model = fallback(chat_model(one), chat_model(two))
        assert (await collect_reply(model, ask("hi"))).text == "the second"


@pytest.mark.parametrize("others", [[status(401)], [status(429, retry_after="400")]])
async def test_when_all_models_fail_the_caller_waits_for_the_one_that_is_ready_first(others: list[Odd]) -> None:
    async with StrictChat([status(429, retry_after="300")]) as one, StrictChat(others) as two:
        failure = await collect_failure(fallback(chat_model(one), chat_model(two)))
        assert (failure.kind, failure.retryable, failure.retry_after) == ("overloaded", True, 300.0)


async def test_leaving_early_and_closing_reach_the_models() -> None:
    async with StrictChat([Odd(Reply(text="x" * 400), stall_after=800)]) as one, StrictChat() as two:
        model = fallback(chat_model(one), chat_model(two))
        async with aclosing(model.stream(ask("hi"))) as stream:
            async for _ in stream:
                break
        await one.hung_up.wait()
        assert isinstance(model, Fallback)
        await model.close()


def test_names_are_looked_up_one_model_is_returned_itself_and_none_or_an_unknown_one_is_refused() -> None:
    model = fallback("ollama:one", "llamacpp:two")
    assert isinstance(model, Fallback) and model.name == "ollama:one"
    assert fallback(model) is model
    with pytest.raises(NotFound, match="no model 'lama:two'"):
        fallback("ollama:one", "lama:two")
    with pytest.raises(BadInput):
        fallback()


def test_the_window_is_the_smallest() -> None:
    small, large = chat_model("http://127.0.0.1:9"), chat_model("http://127.0.0.1:9")
    small._window, large._window = 4096, 200_000
    assert fallback(large, small).window == 4096
    assert fallback(large, chat_model("http://127.0.0.1:9")).window == 200_000
