"""What the model is shown: the projection of a session's state to a request. Pure, and never stored.

Whatever the log holds, every call is paired with exactly one result, the conversation starts with a user
and does not end with the model. Until a compaction the messages only grow, to the byte.
"""

from __future__ import annotations

from msgspec.structs import replace

from treadle.events import (
    ContextCompacted,
    MessageReceived,
    ModelFailed,
    RunStarted,
    SignalDetected,
    TurnStarted,
)
from treadle.messages import (
    Json,
    Message,
    Messages,
    ModelMessage,
    ResultMessage,
    TextPart,
    UserMessage,
)
from treadle.state import OUTCOME_UNKNOWN, CallState, Entry, State, Turn

_NOTES: dict[str, str] = {
    "doom_loop": "You are repeating the same calls with the same arguments. Stop, say what you have learnt so "
    "far, and do something different; if you repeat them again the run ends.",
    "empty_reply": "Your reply was empty. Answer in words, or make a call.",
    "invalid_output": "Your answer does not fit what was asked for. Give it again, whole and corrected.",
}
_WRAP_UP: dict[str, str] = {
    "turn_limit": "You have used all the turns of this run.",
    "call_limit": "You have used all the tool calls of this run.",
    "token_limit": "You have used up the tokens of this run.",
    "time_limit": "The time for this run is over.",
    "cost_limit": "The money for this run is used up.",
    "doom_loop": "You went on repeating the same calls, so the run ends here.",
}
_AGAIN: dict[str, str] = {
    "continue": "Go on where you left off.",
    "recover": "The last run broke off. Go on where it stopped.",
}


class Projection:
    """Turns a state into messages, keeping what it made before: a turn costs what the turn added.

    `scratch` lives as long as the messages only grow; a model's adapter may keep serialised ones in it.
    """

    def __init__(self) -> None:
        self._generation = -1
        self._messages: list[Message] = []
        self._done = 0
        self._pruned = 0
        self.scratch: dict[str, Json] = {}

    def messages(self, state: State) -> Messages:
        """The conversation of `state` as a provider must be shown it."""
        if state.generation != self._generation:
            self._restart(state)
        while self._done < len(state.entries):
            entry = state.entries[self._done]
            if isinstance(entry, Turn) and entry is state.turn and not entry.settled:
                break
            self._show(self._messages, state.entries, self._done)
            self._done += 1
        shown = self._messages
        if state.turn is None or state.turn.reply is not None:  # no request is due, so what is open is not kept
            shown = [*shown]
            for place in range(self._done, len(state.entries)):
                self._show(shown, state.entries, place)
        _let_user_speak(shown)
        return Messages(shown)

    def _show(self, shown: list[Message], entries: list[Entry], place: int) -> None:
        """Add an entry. What is asked for right after a call stands in its result, since no user has said it."""
        entry, before = entries[place], entries[place - 1] if place else None
        if isinstance(entry, TurnStarted) and isinstance(before, Turn) and entry.seq == before.last_seq + 1:
            last = shown[-1] if shown else None
            if isinstance(last, ResultMessage):
                shown[-1] = replace(last, text=f"{last.text}\n\n[{_last_words(entry)}]")
                return
        _add(shown, _shown(entry, self._pruned))

    def _restart(self, state: State) -> None:
        self._generation = state.generation
        self._messages = []
        self.scratch = {}
        summaries = [fact for fact in state.compacted if fact.kind == "summary"]
        prunes = [fact.through for fact in state.compacted if fact.kind == "prune"]
        self._pruned = max(prunes, default=0)
        self._done = 0
        if summaries:
            self._done = _entries_through(state, summaries[-1])
            if self._done:
                self._messages.append(_note(_summary_text(summaries[-1])))


def _entries_through(state: State, fact: ContextCompacted) -> int:
    """How many entries the summary stands for: whole ones only, so that no pair is split."""
    for index, entry in enumerate(state.entries):
        if isinstance(entry, Turn):
            if not entry.settled or entry.last_seq > fact.through:
                return index
        elif entry.seq > fact.through:
            return index
    return len(state.entries)


def _summary_text(fact: ContextCompacted) -> str:
    return f"What happened before, in short (the full transcript is kept):\n\n{fact.summary}"


def _add(shown: list[Message], messages: list[Message]) -> None:
    for message in messages:
        if isinstance(message, ModelMessage):
            _let_user_speak(shown)
        shown.append(message)


def _let_user_speak(shown: list[Message]) -> None:
    """A user begins, and the model never speaks twice in a row."""
    if not shown:
        shown.append(_note("(The conversation goes on.)"))
    elif isinstance(shown[-1], ModelMessage):
        shown.append(_note(_AGAIN["continue"]))


def _shown(entry: Entry, pruned: int) -> list[Message]:
    match entry:
        case MessageReceived(parts=parts):
            said = any(not isinstance(part, TextPart) or part.text.strip() for part in parts)
            return [UserMessage(parts if said else (TextPart("(an empty message)"),))]
        case Turn():
            return _turn(entry, pruned)
        case SignalDetected(kind=kind, detail=detail):
            text = _NOTES.get(kind, "")
            return [_note(f"{text}\n{detail}".strip())] if text else []
        case TurnStarted(wrap_up=limit):
            if limit is None:
                return []
            return [_note(_last_words(entry))]
        case ModelFailed(partial=partial):
            return [ModelMessage(text=partial), _note("(This reply was broken off.)")]
        case RunStarted(trigger=trigger):
            return [_note(_AGAIN[trigger])] if trigger in _AGAIN else []


def _last_words(fact: TurnStarted) -> str:
    return f"{_WRAP_UP.get(fact.wrap_up or '', '')} Without tools, say shortly what was done and what is left."


def _turn(turn: Turn, pruned: int) -> list[Message]:
    reply = turn.reply
    if reply is None or not (reply.text.strip() or turn.calls):
        return []
    calls = tuple(call.call for call in turn.calls.values())
    shown: list[Message] = [ModelMessage(reply.text, calls, reply.reasoning, reply.opaque, reply.model)]
    shown.extend(_result(call, pruned) for call in turn.calls.values())
    return shown


def _result(call: CallState, pruned: int) -> ResultMessage:
    done = call.finished
    if done is None:
        return ResultMessage(call.call.id, call.call.tool, OUTCOME_UNKNOWN, ok=False)
    if done.seq <= pruned:
        artifact = done.truncation.artifact if done.truncation is not None else ""
        where = f", kept whole as artifact {artifact}" if artifact else ""
        text = f"[{len(done.output)} characters of older output left out{where}]"
        return ResultMessage(call.call.id, call.call.tool, text, ok=done.status == "ok")
    text = done.output if done.output.strip() else "(no output)" if done.status == "ok" else f"({done.status})"
    return ResultMessage(call.call.id, call.call.tool, text, done.status == "ok", done.parts)


def _note(text: str) -> UserMessage:
    return UserMessage((TextPart(text),))
