"""Turn a model's reply into facts: read its marks, make its call ids unique, and detect repeated calls."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from treadle.engine.reply_marks import split_marks
from treadle.engine.setup import Setup
from treadle.engine.state import RunState, State, build_signature
from treadle.engine.token_estimate import estimate_message, estimate_messages, estimate_text, estimate_tools
from treadle.errors import ModelError
from treadle.events import AnyFact, ModelReplied, SignalDetected
from treadle.messages import Call, ModelMessage, Reply, Request, replace_surrogates

_reply_decoder = msgspec.json.Decoder(Reply)


def build_reply_facts(setup: Setup, state: State, request: Request, reply: Reply) -> list[AnyFact]:
    """Build the facts of a reply: the reply itself first, then the signals in it."""
    turn, run = state.turn, state.run
    assert turn is not None and run is not None
    reply = _validate_reply(reply)
    split = split_marks(reply.text)
    tools_offered = turn.tools and turn.wrap_up is None
    calls = _make_ids_unique(state, reply.calls) if tools_offered else ()
    usage = reply.usage
    if not usage.input_tokens:  # the model does not count, but compaction must know how full the window is
        sent = estimate_text(request.system) + estimate_tools(request.tools) + estimate_messages(request.messages)
        written = usage.output_tokens or estimate_message(ModelMessage(reply.text, reply.calls))
        usage = replace(usage, input_tokens=sent, output_tokens=written, estimated=True)
    facts: list[AnyFact] = [
        ModelReplied(
            text=split.text,
            reasoning="\n".join(piece for piece in (reply.reasoning, split.reasoning) if piece),
            calls=calls,
            finish=reply.finish,
            usage=usage,
            model=reply.model or setup.model.name,
            opaque=reply.opaque,
            confidence=split.confidence,
        )
    ]
    if reply.calls and not tools_offered:
        names = ", ".join(call.tool for call in reply.calls)
        facts.append(SignalDetected(kind="stray_calls", detail=f"dropped, because no tools were offered: {names}"))
    facts.extend(SignalDetected(kind=kind) for kind in split.signals)
    if calls:
        if run.limits.doom_loop and (detail := _describe_repetition(setup, run, calls)):
            facts.append(SignalDetected(kind="doom_loop", detail=detail))
    elif not split.text:
        facts.append(SignalDetected(kind="empty_reply"))
    elif setup.check_output is not None and is_answer(split.signals) and turn.wrap_up is None:
        problem = setup.check_output(split.text)
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


def is_answer(signals: tuple[str, ...]) -> bool:
    """Whether a text is the answer: the model did not say that it is stuck or that it yields."""
    return "stuck" not in signals and "yielded" not in signals


def _make_ids_unique(state: State, calls: tuple[Call, ...]) -> tuple[Call, ...]:
    """Give each call an id that is new in this session. Small models number the calls of every reply from zero."""
    taken: set[str] = set()
    result: list[Call] = []
    for call in calls:
        call_id, number = call.id, len(state.calls)
        while not call_id or call_id in state.calls or call_id in taken:
            number += 1
            call_id = f"{call.id or 'call'}_{number}"
        taken.add(call_id)
        result.append(call if call_id == call.id else replace(call, id=call_id))
    return tuple(result)


def _describe_repetition(setup: Setup, run: RunState, calls: tuple[Call, ...]) -> str:
    """Name the calls that are repeated, or return nothing. Polling tools may repeat their calls."""
    polling = setup.polling
    trail = [signature for signature in run.trail if signature[0] not in polling] if polling else [*run.trail]
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
