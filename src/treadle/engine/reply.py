"""Turn a model's reply into facts: read its marks, make its call ids unique, detect repeated calls. Pure.

Marks are tags such as <answer> or <stuck>. One splitter reads the live stream and the whole text, so both agree. It
gets the answer without the reasoning that leaked into it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from treadle.engine.implicit_signals import find_implicit_signals
from treadle.engine.leaked_reasoning import ReasoningSplitter, split_reasoning
from treadle.engine.state import RunState, State, build_signature
from treadle.errors import ModelError
from treadle.events import AnyFact, ModelReplied, SignalDetected, SignalKind
from treadle.messages import Call, ModelMessage, Reply, Request, estimate_message, estimate_request, replace_surrogates

_KINDS: dict[str, SignalKind] = {"answer": "answered", "uncertain": "uncertain", "stuck": "stuck", "yield": "yielded"}
_NAMES = "|".join(_KINDS)
_STARTS = "|".join(sorted({name[:end] for name in _KINDS for end in range(len(name))}, reverse=True))
_TAG = re.compile(rf"<(/?)({_NAMES})((?:\s+[\w-]+\s*=\s*(?:\"[^\"<>]*\"|'[^'<>]*'|[^\s<>\"']+))*)\s*/?>")
_TAG_START = re.compile(rf"</?(?:{_STARTS}|(?:{_NAMES})(?:\s[^<>]*|/)?)\Z")
_CONFIDENCE = re.compile(r"confidence\s*=\s*[\"']?([0-9.]+)")
_LONGEST_TAG = 120
_reply_decoder = msgspec.json.Decoder(Reply)


def build_reply_facts(
    state: State,
    request: Request,
    reply: Reply,
    polling: Collection[str] = (),
    check_output: Callable[[str], str] | None = None,
) -> list[AnyFact]:
    """Build the facts of a reply: the reply itself first, then the signals in it. `polling` tools may repeat calls."""
    turn, run = state.turn, state.run
    assert turn is not None and run is not None
    reply = _validate_reply(reply)
    split = split_marks(reply.text)
    tools_offered = turn.tools and turn.wrap_up is None
    calls = make_ids_unique(state, reply.calls) if tools_offered else ()
    usage = reply.usage
    if not usage.input_tokens:  # the model does not count, but compaction must know how full the window is
        written = usage.output_tokens or estimate_message(ModelMessage(reply.text, reply.calls))
        usage = replace(usage, input_tokens=estimate_request(request), output_tokens=written, estimated=True)
    facts: list[AnyFact] = [
        ModelReplied(
            text=split.text,
            reasoning="\n".join(piece for piece in (reply.reasoning, split.reasoning) if piece),
            calls=calls,
            finish=reply.finish,
            usage=usage,
            model=reply.model,
            opaque=reply.opaque,
            confidence=split.confidence,
            sources=tuple(name for name in request.sources if name not in state.seen),
            first_token=reply.first_token,
        )
    ]
    if reply.calls and not tools_offered:
        names = ", ".join(call.tool for call in reply.calls)
        facts.append(SignalDetected(kind="stray_calls", detail=f"dropped, because no tools were offered: {names}"))
    signals: dict[SignalKind, str] = dict.fromkeys(split.signals, "")
    may_mean_it = turn.wrap_up is None and reply.finish == "stop" and not calls
    if not signals and may_mean_it and run.limits.implicit_signals:
        signals = {kind: f"in plain words: {said}" for kind, said in find_implicit_signals(split.text).items()}
    facts.extend(SignalDetected(kind=kind, detail=detail) for kind, detail in signals.items())
    if calls:
        if run.limits.doom_loop and (detail := _describe_repetition(run, calls, polling)):
            facts.append(SignalDetected(kind="doom_loop", detail=detail))
    elif not split.text:
        if not reply.calls:
            facts.append(SignalDetected(kind="empty_reply"))
    elif check_output is not None and turn.wrap_up is None and not {"stuck", "yielded"} & signals.keys():
        problem = check_output(split.text)
        if problem:
            facts.append(SignalDetected(kind="invalid_output", detail=problem))
    return facts


def _validate_reply(reply: Reply) -> Reply:
    """Check that the log can store the reply and read it again. Adapters and middleware can be anybody's code."""
    try:
        encoded = msgspec.json.encode(reply)
    except UnicodeEncodeError:
        calls = (
            Call(replace_surrogates(call.id), replace_surrogates(call.tool), replace_surrogates(call.arguments))
            for call in reply.calls
        )
        texts = {name: replace_surrogates(getattr(reply, name)) for name in ("text", "reasoning", "model", "opaque")}
        reply = replace(reply, calls=tuple(calls), **texts)
        encoded = msgspec.json.encode(reply)
    try:
        _reply_decoder.decode(encoded)
    except msgspec.ValidationError as error:
        raise ModelError(f"the reply is malformed: {error}") from None
    return reply


def make_ids_unique(state: State, calls: tuple[Call, ...]) -> tuple[Call, ...]:
    """Give each call an id that is new in this session. Small models number the calls of every reply from zero."""
    unique: dict[str, Call] = {}
    earlier = state.earlier_ids
    for call in calls:
        call_id, number = call.id, len(state.calls)
        while not call_id or call_id in state.calls or call_id in unique or call_id in earlier:
            number += 1
            call_id = f"{call.id or 'call'}_{number}"
        unique[call_id] = call if call_id == call.id else replace(call, id=call_id)
    return tuple(unique.values())


def _describe_repetition(run: RunState, calls: tuple[Call, ...], polling: Collection[str]) -> str:
    """Name the calls that are repeated, or return an empty string."""
    trail = [signature for signature in run.trail if signature[0] not in polling] if polling else list(run.trail)
    for call in calls:
        if call.tool in polling:
            continue
        trail.append(build_signature(call))
        period = find_cycle(trail)
        if period:
            names = " → ".join(tool for tool, _ in trail[-period:])
            return f"{names}, again and again with the same arguments"
    return ""


def find_cycle(trail: list[tuple[str, str]]) -> int:
    """Return the length of the cycle that the last calls repeat: 1 for three equal calls, 2, 3, or 0 for none."""
    if len(trail) < 3 or trail[-1] not in trail[-4:-1]:
        return 0
    for period, length in ((1, 3), (2, 4), (3, 6)):
        if len(trail) >= length and trail[-length:-period] == trail[period - length :]:
            return period
    return 0


# ── marks ──────────────────────────────────────────────────────────────────────────────────────────────────


class MarkSplitter(Struct):
    """Splits streamed text into answer and reasoning, and removes the marks.

    `signals` collects the marks. Text that may be the start of a mark is held back until that is certain.
    """

    signals: list[SignalKind] = []
    confidence: float | None = None
    _held: str = ""
    _reasoning: ReasoningSplitter = field(default_factory=ReasoningSplitter)

    def feed(self, text: str) -> tuple[str, str]:
        """Return the answer text and the reasoning that are certain by now."""
        text, reasoning = self._reasoning.feed(text)
        return self.remove_marks(text), reasoning

    def finish(self) -> tuple[str, str]:
        """Return the text that was held back: no more text follows."""
        text, reasoning = self._reasoning.finish()
        answer = self.remove_marks(text)
        rest, self._held = self._held, ""
        return answer + rest, reasoning

    def remove_marks(self, text: str) -> str:
        """Return the text without the marks in it, as far as that is certain by now."""
        if not self._held and "<" not in text:
            return text
        text = self._held + text
        start = _TAG_START.search(text, max(0, len(text) - _LONGEST_TAG))
        self._held = text[start.start() :] if start else ""
        return _TAG.sub(self._take_mark, text[: start.start()] if start else text)

    def _take_mark(self, tag: re.Match[str]) -> str:
        if len(tag[0]) > _LONGEST_TAG:
            return tag[0]
        if not tag[1]:
            self._record_signal(_KINDS[tag[2]], tag[3])
        return ""

    def _record_signal(self, kind: SignalKind, attributes: str) -> None:
        if kind not in self.signals:
            self.signals.append(kind)
        if found := _CONFIDENCE.search(attributes):
            try:
                self.confidence = min(1.0, max(0.0, float(found[1])))
            except ValueError:
                self.confidence = None


class SplitReply(Struct, frozen=True):
    """A whole text without its marks, and the signals in them."""

    text: str
    reasoning: str
    signals: tuple[SignalKind, ...]
    confidence: float | None


def split_marks(text: str) -> SplitReply:
    """Remove the marks and the leaked reasoning from a whole text."""
    if not text:  # most replies with calls
        return SplitReply("", "", (), None)
    said, reasoning = split_reasoning(text)
    splitter = MarkSplitter()
    answer = splitter.remove_marks(said) + splitter.finish()[0]
    is_changed = splitter.signals or len(said) < len(text) or not answer.strip()
    return SplitReply(answer.strip() if is_changed else answer, reasoning, tuple(splitter.signals), splitter.confidence)
