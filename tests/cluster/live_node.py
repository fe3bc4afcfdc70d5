"""A node of its own for tests of live text: it runs sessions, and holds watchers that check what they see.

It obeys JSON lines on its standard input, and answers each with one.
"""

import asyncio
import json
import random
import sys
import time
from array import array
from typing import Any

from treadle.events import Custom, Event, Fact, ModelReplied, SessionCreated, TextDelta, TurnStarted
from treadle.log.base import Claim, Log, Watch
from treadle.log.open_log import open_log


class Watcher:
    """One watcher: its position, and what was wrong with what it saw."""

    def __init__(self, node: "LiveNode", session_id: str, after: int) -> None:
        self.session_id, self.seq = session_id, after
        self.faults: list[str] = []
        self._node, self._watch = node, node.log.watch(session_id, after)
        self._where, self._joined_at = node.locate(session_id), time.monotonic()
        self._ended, self._shown = 0, (0, -1)
        self.task = asyncio.create_task(self._follow(self._watch))

    async def _follow(self, watch: Watch) -> None:
        async for event in watch:
            self._check(event)
            for later in watch.ready():
                self._check(later)

    def _check(self, event: Event) -> None:
        if isinstance(event, TextDelta):
            self._check_text(event)
        elif isinstance(event, Fact):
            if event.seq != self.seq + 1:
                self.faults.append(f"{self.session_id}: fact {event.seq} after {self.seq}")
            self.seq = event.seq
            if isinstance(event, ModelReplied):
                self._ended = event.seq
            elif isinstance(event, Custom):
                self._note_delay(event.data, is_fact=True)

    def _check_text(self, delta: TextDelta) -> None:
        """Each word is its number in the reply and when it was said."""
        words = [word.split("@") for word in delta.text.split()]
        begin, end = int(words[0][0]), int(words[-1][0])
        if delta.after < self._ended:
            self.faults.append(f"{self.session_id}: text after {delta.after} was shown after the reply {self._ended}")
        if delta.after > self.seq:
            self.faults.append(f"{self.session_id}: text after {delta.after} was shown at {self.seq}")
        after, shown = self._shown
        if after == delta.after and begin != shown + 1:
            self.faults.append(f"{self.session_id}: word {begin} was shown after word {shown}")
        self._shown = (delta.after, end)
        self._note_delay(words[0][1], is_fact=False)

    def _note_delay(self, said_at: Any, *, is_fact: bool) -> None:
        """Note how late something was seen, if it was said after this watcher came."""
        if float(said_at) > self._joined_at:
            self._node.delays[f"{'facts' if is_fact else 'text'} {self._where}"].append(
                time.monotonic() - float(said_at)
            )

    async def close(self) -> None:
        self._watch.close()
        await self.task


class LiveNode:
    """The node: its log, the sessions that it runs, and its watchers."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self._watchers: dict[int, Watcher] = {}
        self._runs: dict[str, asyncio.Task[None]] = {}
        self.heads: dict[str, int] = {}
        self.faults: list[str] = []
        self.delays = {name: array("d") for name in ("text here", "text elsewhere", "facts here", "facts elsewhere")}

    def locate(self, session_id: str) -> str:
        """Whether a session runs here or elsewhere."""
        return "here" if session_id in self._runs else "elsewhere"

    async def run(self, names: list[str], seconds: float, rate: float, words: int) -> None:
        """Run sessions that all speak for so many seconds: `words` to a reply, `rate` a second."""
        for name in names:
            await self.log.create(name, [SessionCreated(session_id=name)])
            claim = await self.log.claim(f"node of {name}", 60, name)
            assert claim is not None
            self._runs[name] = asyncio.create_task(self._speak(claim, seconds, rate, words))

    async def _speak(self, claim: Claim, seconds: float, rate: float, words: int) -> None:
        log, name, seq = self.log, claim.session_id, 1
        await asyncio.sleep(random.random() / rate)
        loop, until = asyncio.get_running_loop(), time.monotonic() + seconds
        while time.monotonic() < until:
            await log.append(claim, seq, [TurnStarted(turn=1)])
            seq += 1
            due = loop.time()
            for number in range(words):
                log.publish(name, TextDelta(text=f"{number}@{time.monotonic():.5f} ", after=seq))
                due += 1 / rate
                await asyncio.sleep(max(0.0, due - loop.time()))
            facts = [ModelReplied(text="said"), Custom(name="said", data=time.monotonic())]
            await log.append(claim, seq, facts)
            seq += len(facts)
            self.heads[name] = seq
            await log.renew(claim)

    async def obey(self, order: dict[str, Any]) -> Any:
        match order.pop("do"):
            case "run":
                return await self.run(**order)
            case "watch":
                for number, session_id, after in order["watchers"]:
                    self._watchers[number] = Watcher(self, session_id, after)
            case "leave":
                return [await self._close_watcher(number) for number in order["watchers"]]
            case "finish":
                await asyncio.gather(*self._runs.values())
                return self.heads
            case "reach":
                return await self._reach(**order)
            case "measure":
                return {"cpu": time.process_time(), **{name: list(found) for name, found in self.delays.items()}}
            case what:
                raise ValueError(what)
        return None

    async def _close_watcher(self, number: int) -> int:
        watcher = self._watchers.pop(number)
        await watcher.close()
        self.faults += watcher.faults
        return watcher.seq

    async def _reach(self, heads: dict[str, int], seconds: float) -> list[str]:
        """Wait until every watcher has seen all facts. Return what was wrong."""
        until = time.monotonic() + seconds
        for watcher in self._watchers.values():
            while watcher.seq < heads[watcher.session_id] and time.monotonic() < until:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            if watcher.seq != heads[watcher.session_id]:
                self.faults.append(f"{watcher.session_id}: {watcher.seq} of {heads[watcher.session_id]} facts")
        for number in list(self._watchers):
            await self._close_watcher(number)
        return self.faults[:20]


async def main(url: str) -> None:
    loop, reader = asyncio.get_running_loop(), asyncio.StreamReader(limit=2**24)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    async with open_log(url) as log:
        node = LiveNode(log)
        await log.get_approval_key()
        print("ready", flush=True)
        while line := await reader.readline():
            print(json.dumps(await node.obey(json.loads(line))), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
