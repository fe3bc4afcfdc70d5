"""Connections, time limits and failures, each over a real socket that misbehaves in its own way."""

import asyncio
import contextlib
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import aclosing
from unittest import mock

import pytest
from aiohttp import ClientConnectorCertificateError

from tests.kit.fakes.chat import StrictChat
from tests.kit.fakes.clients import PLENTY, ask, chat_model, collect_events, collect_failure, collect_reply, user
from tests.kit.fakes.server import Odd, events, status
from tests.kit.sessions import PATIENCE
from treadle.events import TextDelta
from treadle.messages import ImagePart, Reply
from treadle.models import http
from treadle.models.http import Endpoint, HttpExchange, Secret, Timeouts, Transport

TEXT = "Grüße an alle — 你好 👋, and a longer tail so that there is something to cut."


def limit_one(name: str, seconds: float = 0.3) -> Timeouts:
    """Little time for one thing and plenty for the rest, so that no other limit can come first."""
    connect = 2.0 if name == "first_byte" else PATIENCE  # the time for the first byte begins behind it
    plenty = {"connect": connect, "first_byte": PATIENCE, "idle": PATIENCE, "total": PATIENCE}
    return Timeouts(**{**plenty, name: seconds})


@contextlib.contextmanager
def reserve_address(host: str = "127.0.0.1") -> Iterator[str]:
    """An address without a server. The port is bound, so no other program can listen there."""
    with socket.socket() as taken:
        taken.bind((host, 0))
        yield f"http://{host}:{taken.getsockname()[1]}/v1"


@pytest.fixture
def no_proxy_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)


async def test_pieces_that_arrive_together_are_one_delta_without_delay() -> None:
    held = asyncio.Event()
    async with StrictChat([Reply(text=TEXT), Odd(Reply(text=TEXT), split=400, held=held, held_after=800)]) as fake:
        model = chat_model(fake)
        together = await collect_events(model, ask("hi"))
        assert [type(event) for event in together] == [TextDelta, Reply]
        async with asyncio.timeout(PATIENCE), aclosing(model.stream(ask("hi"))) as stream:
            first = await anext(stream)
            held.set()
            rest = [event async for event in stream]
    assert isinstance(first, TextDelta) and TEXT.startswith(first.text)
    assert isinstance(rest[-1], Reply) and rest[-1].text == TEXT


@pytest.mark.parametrize(
    ("answer", "limit", "kind", "retryable", "message"),
    [
        pytest.param(
            Odd(headers_late=PATIENCE), "first_byte", "stalled", True, "did not begin to answer within 0.3 s", id="late"
        ),
        pytest.param(
            Odd(Reply(text=TEXT), split=1, pause=0.01), "total", "stalled", False, "after 0.3 s", id="without an end"
        ),
        *(
            pytest.param(Odd(Reply(text=TEXT), end_after=at), "", "network", True, "", id=f"cut off at {at}")
            for at in (0, 300, 500)
        ),
        pytest.param(
            Odd(raw=b"<html><title>Login</title></html>", content_type="text/html; charset=utf-8"),
            "", "bad_request", False, "base URL", id="a web page",
        ),
        pytest.param(
            Odd(raw=b"", status=307, headers={"location": "http://127.0.0.1:1/"}),
            "", "bad_request", False, "base URL", id="a redirect",
        ),
        pytest.param(status(500, "oops"), "", "internal", True, "oops", id="an error"),
    ],
)  # fmt: skip
async def test_a_response_that_is_no_complete_reply_is_a_failure(
    answer: Odd, limit: str, kind: str, retryable: bool, message: str
) -> None:
    async with StrictChat([answer]) as fake:
        error = await collect_failure(chat_model(fake, timeouts=limit_one(limit) if limit else PLENTY))
        assert len(fake.seen) == 1, "nothing is retried and no redirect followed"
    assert (error.kind, error.retryable) == (kind, retryable)
    assert message in str(error)


async def test_one_byte_and_then_nothing_is_a_stall() -> None:
    async with StrictChat([Odd(stall_after=1)]) as fake:
        error = await collect_failure(chat_model(fake, timeouts=limit_one("idle")))
        assert (error.kind, error.retryable) == ("stalled", True)
        assert "no data for 0.3 s" in str(error)
        await asyncio.wait_for(fake.hung_up.wait(), PATIENCE)


@pytest.mark.parametrize(("way", "kind"), [("stall_after", "stalled"), ("reset_after", "network")])
async def test_a_reply_that_breaks_off_keeps_its_text_and_the_next_request_works(way: str, kind: str) -> None:
    async with StrictChat([Odd(Reply(text="Half of it"), **{way: 500}), Reply(text="All of it")]) as fake:
        model = chat_model(fake, timeouts=limit_one("idle"))
        error = await collect_failure(model)
        assert (error.kind, error.retryable) == (kind, True)
        assert error.partial and "Half of it".startswith(error.partial)
        assert (await collect_reply(model, ask("hi"))).text == "All of it"


async def test_a_slow_consumer_is_no_stall(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    seen, clock = 0, loop.time
    monkeypatch.setattr(loop, "time", lambda: clock() + (2 * PATIENCE if seen > 1 else 0.0))
    async with StrictChat([Odd(Reply(text=TEXT), split=500, pause=0.02)]) as fake:
        model = chat_model(fake, timeouts=Timeouts(connect=PATIENCE, idle=PATIENCE, total=1e6))
        async for _ in model.stream(ask("hi")):
            seen += 1  # from the second piece on, which was waited for, it is later: twice as late as a pause may be
            for _ in range(5):
                await asyncio.sleep(0)
    assert seen > 2


@pytest.mark.parametrize("way", ["end_after", "reset_after", "stall_after"])
async def test_a_failure_after_the_end_of_a_reply_does_not_matter(way: str) -> None:
    said = {"choices": [{"index": 0, "delta": {"content": "all of it"}, "finish_reason": "stop"}]}
    raw = events(said, "[DONE]")
    at = raw.index(b"[DONE]")
    async with StrictChat([Odd(raw=raw, **{way: at})]) as fake:
        reply = await collect_reply(chat_model(fake, timeouts=limit_one("idle")), ask("hi"))
    assert (reply.text, reply.finish) == ("all of it", "stop")


@pytest.mark.parametrize("way", ["end_after", "reset_after", "stall_after"])
async def test_the_status_counts_when_the_error_body_never_comes(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "_ERROR_SECONDS", 0.3)
    refusal = Odd(raw=b'{"error": "no such', status=401, content_type="application/json", **{way: 10})
    async with StrictChat([refusal]) as fake:
        error = await collect_failure(chat_model(fake))
    assert (error.kind, error.retryable) == ("auth", False)


async def test_a_server_that_keeps_the_connection_open_does_not_delay_the_reply() -> None:
    async with StrictChat([Odd(Reply(text="done"), end_late=60.0)]) as fake:
        async with asyncio.timeout(PATIENCE):
            assert (await collect_reply(chat_model(fake), ask("hi"))).text == "done"


async def test_connections_are_kept_between_turns_and_shared_by_models_of_one_endpoint() -> None:
    async with StrictChat() as fake:
        one, two = chat_model(fake, "one"), chat_model(fake, "two")
        for _ in range(5):
            await collect_reply(one, ask("hi"))
            await collect_reply(two, ask("hi"))
        assert fake.connections == 1
        await one.close()
        await collect_reply(two, ask("hi"))
        assert fake.connections == 1
        await two.close()
        await collect_reply(two, ask("hi"))
        assert fake.connections == 2


async def test_leaving_early_stops_the_generation() -> None:
    async with StrictChat([Odd(Reply(text=TEXT * 50), stall_after=3000)]) as fake:
        async with aclosing(chat_model(fake).stream(ask("hi"))) as stream:
            async for _ in stream:
                break
        await asyncio.wait_for(fake.hung_up.wait(), PATIENCE)


async def test_cancelling_stops_the_generation() -> None:
    async with StrictChat([Odd(Reply(text=TEXT), stall_after=600)]) as fake:
        begun = asyncio.Event()

        async def consume() -> None:
            async for _ in chat_model(fake).stream(ask("hi")):
                begun.set()

        task = asyncio.create_task(consume())
        await asyncio.wait_for(begun.wait(), PATIENCE)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(fake.hung_up.wait(), PATIENCE)


async def test_a_large_body_is_sent_whole() -> None:
    picture = ImagePart(data="A" * 3_000_000)
    async with StrictChat() as fake:
        request = ask(user("look", picture))
        assert (await collect_reply(chat_model(fake), request)).text == "done"
        assert len(fake.seen[0].raw) > 3_000_000


async def test_a_missing_server_is_named() -> None:
    with reserve_address() as base_url:
        error = await collect_failure(chat_model(base_url))
    assert (error.kind, error.retryable) == ("network", True)
    assert "cannot be reached" in str(error)


async def test_a_connection_that_is_not_accepted_times_out() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full, contextlib.ExitStack() as stack:
        for _ in range(4):  # connections that are not accepted fill the queue, and the next one waits
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(full.getsockname())
        base_url = f"http://127.0.0.1:{full.getsockname()[1]}/v1"
        error = await collect_failure(chat_model(base_url, timeouts=limit_one("connect")))
    assert (error.kind, error.retryable) == ("network", True)
    assert "no connection to fake" in str(error) and "within 0.3 s" in str(error)


async def test_no_secret_is_shown_by_any_error_or_repr() -> None:
    key = "sk-very-secret-1234"
    echo = status(401, f"Incorrect API key provided: {key}")
    crash = Odd(raw=events({"error": {"message": f"the key {key} is bad", "code": 401}}))
    nonsense = Odd(raw=f"data: {{'{key}'\n\n".encode())
    async with StrictChat([echo, crash, nonsense], key=key) as fake:
        model = chat_model(fake, key=Secret(key), key_variable="FAKE_KEY")
        errors = [await collect_failure(model) for _ in range(3)]
        shown = [repr(model), repr(model.endpoint), repr(Secret(key)), f"{Secret(key)}"]
    assert [error.kind for error in errors] == ["auth", "auth", "network"]
    assert "check FAKE_KEY" in str(errors[0])
    for error in errors:
        shown += [str(error), repr(error), error.partial]
        assert error.__cause__ is None
    assert [text for text in shown if key in text] == []


@pytest.mark.usefixtures("no_proxy_is_set")
@pytest.mark.parametrize("scheme", ["http://", ""])
async def test_the_proxy_of_the_environment_is_used(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with StrictChat([Reply(text="through the proxy")]) as proxy:
        monkeypatch.setenv("http_proxy", f"{scheme}user:secret@127.0.0.1:{proxy.port}")
        proxy.prefix = "http://models.invalid/v1"  # a proxy is asked for the whole address
        assert (await collect_reply(chat_model(proxy.prefix), ask("hi"))).text == "through the proxy"
        assert "proxy-authorization" in proxy.seen[0].headers
        monkeypatch.setenv("no_proxy", "*")
        with reserve_address("127.0.0.2") as base_url:
            error = await collect_failure(chat_model(base_url))
        assert len(proxy.seen) == 1
    assert error.kind == "network"


@pytest.mark.usefixtures("no_proxy_is_set")
@pytest.mark.parametrize(
    ("variable", "proxy", "message"),
    [
        ("all_proxy", "socks5://user:secret@127.0.0.1:1080", "socks5"),
        ("http_proxy", "user:secret@127.0.0.1:99999", "a proxy for models.invalid that is no address"),
    ],
)
async def test_an_unusable_proxy_is_an_error(
    variable: str, proxy: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, proxy)
    error = await collect_failure(chat_model("http://models.invalid/v1"))
    assert (error.kind, error.retryable) == ("network", False)
    assert message in str(error) and "secret" not in str(error)


async def test_the_reason_for_an_untrusted_certificate_is_named() -> None:
    why = ssl.SSLCertVerificationError(1, "certificate verify failed")
    why.verify_message = "certificate has expired"
    exchange = HttpExchange(Transport(Endpoint(provider="acme", base_url="https://api.acme.test")))
    error = exchange.build_error(ClientConnectorCertificateError(mock.Mock(), why))
    assert "is not trusted (certificate has expired)" in str(error) and not error.retryable


async def test_many_requests_at_once_share_one_session() -> None:
    async with StrictChat(lambda body: Reply(text=body["messages"][-1]["content"])) as fake:
        model = chat_model(fake)
        replies = await asyncio.gather(*(collect_reply(model, ask(f"number {i}")) for i in range(50)))
    assert [reply.text for reply in replies] == [f"number {i}" for i in range(50)]


def test_a_loop_that_ends_leaves_nothing_open() -> None:
    code = """
import asyncio, aiohttp
from tests.kit.fakes.chat import StrictChat
from tests.kit.fakes.clients import ask, chat_model, collect_reply

async def main():
    asyncio.get_running_loop().slow_callback_duration = 600  # a busy machine would print warnings
    async with StrictChat() as fake:
        print((await collect_reply(chat_model(fake), ask("hi"))).text)

asyncio.run(main())
asyncio.run(main())
from treadle.models import http
print(len(http._pools))
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-X", "dev", "-c", code], capture_output=True, text=True, timeout=500
    )
    assert (done.stdout.split(), done.stderr) == (["done", "done", "0"], "")


def test_importing_a_model_loads_no_http_library() -> None:
    code = "import treadle.models.catalog, treadle.models.chat_completions, sys; print('aiohttp' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_an_endpoint_shows_neither_key_nor_password() -> None:
    endpoint = Endpoint(provider="p", base_url="http://me:hidden@host:81/v1", key=Secret("sk-hidden"))
    assert endpoint.address == "host:81"
    assert endpoint.error_source.redact("a sk-hidden b hidden") == "a [secret] b [secret]"
    assert http.LOCAL_TIMEOUTS.first_byte > Timeouts().first_byte
