"""Streams that are closed, full, or hold what is no text: cron jobs, services and pipes come with such."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

import pytest

from tests.kit.fakes.chat import StrictChat
from tests.kit.sessions import PATIENCE
from tests.kit.terminal import Done, Place, call_tool, model_options
from treadle.messages import Reply


async def by_shell(place: Place, how: str, *words: str) -> Done:
    """The program as a shell starts it with such redirections."""
    process = await asyncio.create_subprocess_exec(
        "sh",
        "-c",
        f'exec "$@" {how}',
        "sh",
        *(sys.executable, "-m", "treadle"),
        *words,
        cwd=place.work,
        env=place.env,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(PATIENCE):
        out, err = await process.communicate()
    assert process.returncode is not None
    return Done(process.returncode, out.decode(), err.decode())


@pytest.mark.parametrize("how", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
async def test_a_closed_stream_is_one_that_nobody_reads(place: Place, how: str) -> None:
    async with StrictChat([Reply(text="fine")]) as fake:
        done = await by_shell(place, how, "run", "hello", *model_options(fake))
    assert (done.code, done.out) == (0, "" if ">&- 2" in how or how == ">&-" else "fine\n")
    assert "Error" not in done.err
    listed = await place.quick("sessions", "list", "--json")
    assert '"status":"answered"' in listed.out


async def test_an_objective_from_a_closed_stdin_is_empty(place: Place) -> None:
    async with StrictChat() as fake:
        done = await by_shell(place, "<&-", "run", "-", "--json", *model_options(fake))
    assert (done.code, done.document["error"]) == (2, "the task is empty; say what to do")


async def test_the_document_is_given_also_where_the_events_find_no_room(place: Place) -> None:
    async with StrictChat([Reply(text="fine")]) as fake:
        done = await by_shell(place, "2>/dev/full", "run", "hello", "--json", *model_options(fake))
    assert (done.code, done.document["answer"]) == (0, "fine")


@pytest.mark.parametrize("how", ["2>/dev/full", "2>gone"])
async def test_the_answer_is_given_also_where_nobody_reads_the_progress(place: Place, how: str) -> None:
    os.mkfifo(place.work / "gone")
    reader = os.open(place.work / "gone", os.O_RDONLY | os.O_NONBLOCK)

    def answer(body: dict[str, Any]) -> Reply:
        nonlocal reader
        if reader >= 0:
            os.close(reader)
            reader = -1
            return call_tool("current_time")
        return Reply(text="fine")

    async with StrictChat(answer) as fake:
        done = await by_shell(place, how, "run", "hello", *model_options(fake))
    assert (done.code, done.out) == (0, "fine\n")


async def test_bytes_that_are_no_text_do_not_keep_the_rest_from_being_read(place: Place) -> None:
    (place.work / "latin.txt").write_bytes(b"caf\xe9 on the diff")
    place.env["PYTHONIOENCODING"] = "utf-8:strict"  # as in most locales; C.UTF-8 is more patient
    async with StrictChat([Reply(text="read")]) as fake:
        done = await by_shell(place, "<latin.txt", "run", "-", "--json", *model_options(fake))
        sent = fake.seen[-1].body["messages"][-1]["content"]
    assert (done.code, sent) == (0, "caf� on the diff")
