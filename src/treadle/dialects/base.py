"""What all dialects share: frames, and one tracker of a run's text, calls and questions.

A dialect takes events in the log's order and returns frames. A frame is a value with one JSON form.
"""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

import msgspec
from msgspec import Struct

from treadle import events
from treadle.errors import BadInput
from treadle.messages import FinishReason, Json, Reply, Request, SignedReasoning

FINISH_REASONS: dict[FinishReason, str] = {
    "stop": "stop",
    "calls": "tool_calls",
    "length": "length",
    "filter": "content_filter",
    "other": "stop",
}
Activity: TypeAlias = events.CallStarted | events.CallFinished | events.ApprovalRequested | events.InputRequested
"""What an agent's tools do. OpenAI's formats send it in the extension field `treadle`."""
encode_frame = msgspec.json.Encoder().encode
"""Encodes a frame as JSON."""


class RunExtension(Struct, frozen=True, omit_defaults=True):
    """The extension field `treadle` of an agent's reply: its session, and what its tools do.

    A piece of a stream has one `event`, a whole document has all `events`.
    """

    session_id: str
    event: events.AnyFact | None = None
    events: tuple[events.AnyFact, ...] = ()


class Frame(Struct, frozen=True, omit_defaults=True, tag_field="type"):
    """One message of a wire format, named by `type`. A field that has its default value is not sent."""


class CallFields(Struct, frozen=True, omit_defaults=True):
    """Which call a message is about, and the tool that it names."""

    call_id: str
    tool: str


class QuestionFields(CallFields, frozen=True):
    """A question to a person. It asks to allow a call or, where there are `questions`, for answers to them.

    `options` are the suggested answers to each question.
    """

    arguments: dict[str, Json]
    safety: str = ""
    why: str = ""
    rule: str = ""
    digest: str = ""
    expires_at: float | None = None
    questions: tuple[str, ...] = ()
    options: tuple[tuple[str, ...], ...] = ()


class Dialect(Protocol):
    """Translates one session's events. The same events give the same frames, live or from the log."""

    def feed(self, event: events.Event) -> Sequence[Struct]:
        """Return the frames of one event: none, one or more."""
        ...


class ReplyFormat(Protocol):
    """One reply in another program's format, streamed or whole.

    It takes a bare model's events up to its `Reply`, or an agent's events up to `RunFinished`. An agent that waits for
    the client's tools ends with a `Reply` too: its calls are those that the client must run.
    """

    session_id: str = ""
    """The session of the agent that answers, for the extension field. It is set before `begin`."""

    end_mark: bytes = b"[DONE]"
    """Sent after the last frame of a stream, if it is not empty."""
    can_report_failure: bool = False
    """Whether a whole document can say that the run failed. Otherwise the server answers with an error."""
    has_error_events: bool = False
    """Whether an error in a stream is an event of its own, in Anthropic's form."""
    ignored_tools: Sequence[str] = ()
    """The client's tools that cannot be served. A header of the response names them."""

    def begin(self) -> Sequence[Struct]:
        """The frames that a stream starts with, before the first event."""
        return ()

    def feed(self, event: events.Event | Reply) -> Sequence[Struct]:
        """The frames of one event."""
        ...

    def feed_block(self, block: SignedReasoning) -> Sequence[Struct]:
        """The frames of a block of signed reasoning. Most formats have none."""
        return ()

    def complete_reply(self, reply: Reply) -> Struct:
        """The whole document for a bare model's reply. The events before it were fed."""
        ...

    def simplify_request(self, request: Request) -> Request | None:
        """What to ask when the provider refuses a request; None if there is nothing to leave out."""
        return None

    def complete_run(self, ending: events.RunFinished | Reply, activity: Sequence[events.AnyFact]) -> Struct:
        """The whole document for an agent's run, with what its tools did. The events before its end were fed."""
        ...


class TrackedCall(Struct):
    """A tool call of the current turn. `arguments` is the JSON text that the model wrote."""

    arguments: str = "{}"
    safety: str = ""
    starts: int = 0


class EventTracker:
    """Remembers what dialects need of a run: the reply's text, the turn's calls and the open questions.

    A call whose result the client must send counts as an open question.

    `tools_called` are the tools of the run's successful calls. `session_turns` are the turns of all finished runs.
    """

    def __init__(self) -> None:
        self.calls: dict[str, TrackedCall] = {}
        self.tools_called: list[str] = []
        self.calls_started = 0
        self.output_tokens = 0
        self.session_turns = 0
        self.open_questions: dict[str, str] = {}
        """The ids of the open questions, and the call that ends each."""
        self._fragments: list[str] = []  # kept by reference, so that another watcher costs no copy of the text

    @property
    def text(self) -> str:
        """The text of the current reply, as far as its fragments were seen."""
        return "".join(self._fragments)

    def track(self, event: events.Event | Reply) -> str:
        """Take in an event and return the text that it adds to the reply.

        A fragment adds itself. A stored reply adds the rest of its text, because a watcher who joined late saw only
        some of the fragments. It adds nothing when fragments in the middle are missing.
        """
        match event:
            case events.TextDelta():
                self._fragments.append(event.text)
                return event.text
            case events.RunStarted():
                self.calls.clear()
                self.tools_called.clear()
                self.open_questions.clear()
                self.calls_started = self.output_tokens = 0
            case events.TurnStarted():
                self.calls.clear()
                self._fragments.clear()
            case events.ModelFailed():
                self._fragments.clear()
            case events.ModelReplied():
                self.calls = {call.id: TrackedCall(call.arguments) for call in event.calls}
                self.output_tokens += event.usage.output_tokens
                seen = self.text
                self._fragments.clear()
                return event.text[len(seen) :] if event.text.startswith(seen) else ""
            case events.ApprovalRequested() | events.InputRequested():
                is_approval = isinstance(event, events.ApprovalRequested)
                self.open_questions[event.call_id] = (event.during if is_approval else "") or event.call_id
                if is_approval and not event.during:
                    self.calls.setdefault(event.call_id, TrackedCall()).safety = event.safety
            case events.ApprovalAnswered() | events.InputAnswered():
                self.open_questions.pop(event.call_id, None)
            case events.CallFinished():
                open_questions = self.open_questions.items()
                self.open_questions = {one: ending for one, ending in open_questions if ending != event.call_id}
                if event.status == "ok":
                    self.tools_called.append(event.tool)
            case events.CallStarted():
                self.calls.setdefault(event.call_id, TrackedCall()).starts += 1
                self.calls_started += event.attempt == 1
                if event.sandbox == events.CLIENT_SANDBOX:
                    self.open_questions[event.call_id] = event.call_id
            case events.RunFinished():
                self.session_turns += event.turns
            case _:
                pass
        return ""


def summarize_output(output: str, max_chars: int = 500) -> str:
    """Write an output in one line, cut after `max_chars` characters. It says how many are left out."""
    line = " ".join(output.split())
    return line if len(line) <= max_chars else f"{line[:max_chars]} [… {len(line) - max_chars} characters more]"


def parse_arguments(arguments: str) -> dict[str, Json] | None:
    """Parse the arguments of a call as the model wrote them. None when they are no JSON object."""
    try:
        return msgspec.json.decode(arguments or "{}", type=dict[str, Json])
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return None


def check_base64(text: str, field: str) -> str:
    """Return the text if it is base64, and raise otherwise: a stored message is kept for good."""
    try:
        b64decode(text, validate=True)
    except ValueError:
        raise BadInput(f"{field}: must be base64", param=field) from None
    return text


def describe_question(fact: events.ApprovalRequested | events.InputRequested) -> dict[str, Any]:
    """The values of `QuestionFields`, for dialects with one form for both kinds of question."""
    if isinstance(fact, events.InputRequested):
        return {
            "call_id": fact.call_id,
            "tool": "ask_user",
            "arguments": {},
            "why": "the model asks",
            "expires_at": fact.expires_at,
            "questions": tuple(question.text for question in fact.questions),
            "options": list_options(fact),
        }
    names = ("call_id", "tool", "arguments", "safety", "why", "rule", "digest", "expires_at")
    return {name: getattr(fact, name) for name in names}


def list_options(fact: events.InputRequested) -> tuple[tuple[str, ...], ...]:
    """The suggested answers to each question, in order. Empty when no question suggests any."""
    options = tuple(question.options for question in fact.questions)
    return options if any(options) else ()


_CLIENT_CALL_ID = re.compile("([0-9a-f]{32})_([0-9]{1,12})")


def build_client_call_id(session_id: str, started: events.CallStarted) -> str:
    """The id under which a client gets a call. It names the session and the position at which the call started."""
    return f"{session_id}_{started.seq}"


def parse_client_call_id(text: str) -> tuple[str, int] | None:
    """Split the id of a client's call into session and position. None for an id that is not ours."""
    found = _CLIENT_CALL_ID.fullmatch(text)
    return (found[1], int(found[2])) if found else None


def build_approval_id(session_id: str, call_id: str) -> str:
    """An id for an approval of any session. Call ids are unique only within their session."""
    return f"{session_id}.{call_id}"


def parse_approval_id(text: str) -> tuple[str, str]:
    """Split an approval id into session and call. The call is empty when there is no dot."""
    session_id, _, call_id = text.partition(".")
    return session_id, call_id
