"""What all dialects share: fed events in the log's order, they give frames, which are values with one JSON form."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import msgspec
from msgspec import Struct

from treadle.errors import BadInput
from treadle.events import ApprovalRequested, CallFinished, Event, InputRequested
from treadle.messages import Json

_encoder = msgspec.json.Encoder()


class Frame(Struct, frozen=True, omit_defaults=True, tag_field="type"):
    """One message of a wire format; `type` tells which. Fields with a default are left out while they have it."""


class Dialect(Protocol):
    """Remembers what it must of one session; the same events give the same frames, live or from the log."""

    def feed(self, event: Event) -> Sequence[Struct]:
        """The frames that an event amounts to: none, one or more."""
        ...


class ReplyText:
    """A reply as far as it was told in fragments. Who came late, or watches from another process, had few or none.

    Kept by reference, so a watcher more costs no copy of the text.
    """

    def __init__(self) -> None:
        self._told: list[str] = []

    def add(self, text: str) -> None:
        self._told.append(text)

    def clear(self) -> None:
        """Begin another reply."""
        self._told.clear()

    def take_rest(self, text: str) -> str:
        """What is still to be told of the whole reply; empty where fragments are missing in between."""
        told = "".join(self._told)
        self._told.clear()
        return text[len(told) :] if text.startswith(told) else ""


def encode_frame(frame: Struct) -> bytes:
    """The JSON of a frame."""
    return _encoder.encode(frame)


def shorten_output(output: str, max_chars: int = 500) -> str:
    """The beginning of an output, cut on a character, saying how much is left out."""
    if len(output) <= max_chars:
        return output
    return f"{output[:max_chars]} [… {len(output) - max_chars} characters more]"


def check_base64(text: str, field: str) -> str:
    """The text, when it is base64: what a message holds stays there for good, and no model could read it else."""
    try:
        b64decode(text, validate=True)
    except ValueError:
        raise BadInput(f"{field}: must be base64") from None
    return text


def is_rejected(fact: CallFinished) -> bool:
    """Whether the call was not let run, by a person, the policy or a budget."""
    return fact.status in ("denied", "refused")


class QuestionContent(NamedTuple):
    """What a person is asked, whether for leave or, where there are `questions`, for words."""

    tool: str
    arguments: dict[str, Json]
    safety: str = ""
    why: str = ""
    rule: str = ""
    digest: str = ""
    questions: tuple[str, ...] = ()
    options: tuple[tuple[str, ...], ...] = ()


def describe_question(fact: ApprovalRequested | InputRequested) -> QuestionContent:
    """A question as dialects with one form for both kinds tell it."""
    if isinstance(fact, InputRequested):
        questions = tuple(question.text for question in fact.questions)
        return QuestionContent("ask_user", {}, why="the model asks", questions=questions, options=list_options(fact))
    return QuestionContent(fact.tool, fact.arguments, fact.safety, fact.why, fact.rule, fact.digest)


def list_options(fact: InputRequested) -> tuple[tuple[str, ...], ...]:
    """What each question suggests as its answer, in their order; empty where none suggests any."""
    options = tuple(question.options for question in fact.questions)
    return options if any(options) else ()


def build_approval_id(session_id: str, call_id: str) -> str:
    """One name for an approval of any session: call ids are unique within their session only."""
    return f"{session_id}.{call_id}"


def parse_approval_id(text: str) -> tuple[str, str]:
    """The session and the call that `approval_id` named; the call is empty where there is no dot."""
    session_id, _, call_id = text.partition(".")
    return session_id, call_id
