"""What a model's reply means: facts for the log, with marks read, ids made unique and loops noticed."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from treadle.engine.reply_marks import find_cycle, split_marks
from treadle.engine.setup import Setup
from treadle.engine.state import RunState, State, build_signature
from treadle.engine.token_estimate import estimate_message, estimate_messages, estimate_text, estimate_tools
from treadle.errors import ModelError
from treadle.events import AnyFact, ModelReplied, SignalDetected
from treadle.messages import Call, ModelMessage, Reply, Request, Usage, replace_surrogates

_reply_decoder = msgspec.json.Decoder(Reply)


def build_reply_facts(setup: Setup, state: State, request: Request, reply: Reply) -> list[AnyFact]:
    """The facts that a reply amounts to: itself first, then what was noticed in it."""
    turn, run = state.turn, state.run
    assert turn is not None and run is not None
    reply = _readable(reply)
    strained = split_marks(reply.text)
    offered = turn.tools and turn.wrap_up is None
    calls = _unique(state, reply.calls) if offered else ()
    facts: list[AnyFact] = [
        ModelReplied(
            text=strained.text,
            reasoning="\n".join(piece for piece in (reply.reasoning, strained.reasoning) if piece),
            calls=calls,
            finish=reply.finish,
            usage=reply.usage if reply.usage.input_tokens else _guessed(request, reply),
            model=reply.model or setup.model.name,
            opaque=reply.opaque,
            confidence=strained.confidence,
        )
    ]
    if reply.calls and not offered:
        names = ", ".join(call.tool for call in reply.calls)
        facts.append(SignalDetected(kind="stray_calls", detail=f"dropped, since no tools were offered: {names}"))
    facts.extend(SignalDetected(kind=kind) for kind in strained.signals)
    if calls:
        if run.limits.doom_loop and (detail := _going_round(setup, run, calls)):
            facts.append(SignalDetected(kind="doom_loop", detail=detail))
    elif not strained.text:
        facts.append(SignalDetected(kind="empty_reply"))
    elif setup.check_output is not None and is_answer(strained.signals) and turn.wrap_up is None:
        problem = setup.check_output(strained.text)
        if problem:
            facts.append(SignalDetected(kind="invalid_output", detail=problem))
    return facts


def _guessed(request: Request, reply: Reply) -> Usage:
    """The usage of a model that does not count: how full its window is must be known all the same."""
    sent = estimate_text(request.system) + estimate_tools(request.tools) + estimate_messages(request.messages)
    written = reply.usage.output_tokens or estimate_message(ModelMessage(reply.text, reply.calls))
    return replace(reply.usage, input_tokens=sent, output_tokens=written, estimated=True)


def _readable(reply: Reply) -> Reply:
    """The reply, unless it could be stored but never read again: adapters and middleware are anybody's code."""
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


def is_answer(signals: tuple[str, ...]) -> bool:
    """Whether a text is meant as the answer, and not as giving up or handing back."""
    return "stuck" not in signals and "yielded" not in signals


def _unique(state: State, calls: tuple[Call, ...]) -> tuple[Call, ...]:
    """The calls with ids that this session has not seen: small models number every reply from zero."""
    taken: set[str] = set()
    result: list[Call] = []
    for call in calls:
        identity, number = call.id, len(state.calls)
        while not identity or identity in state.calls or identity in taken:
            number += 1
            identity = f"{call.id or 'call'}_{number}"
        taken.add(identity)
        result.append(call if identity == call.id else replace(call, id=identity))
    return tuple(result)


def _going_round(setup: Setup, run: RunState, calls: tuple[Call, ...]) -> str:
    """What is being repeated, or nothing; tools made for polling may repeat themselves."""
    polling = setup.polling
    trail = [mark for mark in run.trail if mark[0] not in polling] if polling else [*run.trail]
    for call in calls:
        if call.tool in polling:
            continue
        trail.append(build_signature(call))
        period = find_cycle(trail)
        if period:
            names = " → ".join(mark[0] for mark in trail[-period:])
            return f"{names}, again and again with the same arguments"
    return ""
