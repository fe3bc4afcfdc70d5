"""Hypothesis strategies: any value of any event, any history of facts, and actions of models and people."""

import types
from functools import cache
from itertools import product
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from treadle import events
from treadle.engine.fold import fold
from treadle.engine.state import State
from treadle.errors import ModelError
from treadle.messages import Call, ImagePart, ModelMessage, Reply, ResultMessage, TextPart, Usage, UserMessage

json_values: SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=5,
)


@cache
def build_values(hint: Any) -> SearchStrategy[Any]:
    """Build a strategy for a type of an event from its type hints, so that a new field is covered at once."""
    origin, inside = get_origin(hint), get_args(hint)
    simple: dict[Any, SearchStrategy[Any]] = {
        Any: json_values,
        str: st.text(max_size=12),
        int: st.integers(-(2**53), 2**53),
        float: st.floats(allow_nan=False, allow_infinity=False),
        bool: st.booleans(),
        type(None): st.none(),
        events.Limits: st.builds(  # limits that make no sense are refused
            events.Limits,
            turns=st.integers(0, 200),
            calls=st.integers(0, 2**53),
            tokens=st.none() | st.integers(1, 2**53),
            seconds=st.none() | st.floats(1e-9, 1e9),
            cost=st.none() | st.floats(1e-9, 1e9),
            attempts=st.integers(1, 2**53),
            retry_seconds=st.floats(0, 1e9),
            doom_loop=st.booleans(),
            implicit_signals=st.booleans(),
            ceiling=st.integers(200, 10_000),
        ),
    }
    if hint in simple:
        return simple[hint]
    if origin is Literal:
        return st.sampled_from(inside)
    if origin in (Union, types.UnionType):
        return st.one_of([build_values(one) for one in inside])
    if origin is tuple and inside[-1] is not ...:
        return st.tuples(*map(build_values, inside))
    if origin is tuple:
        return st.lists(build_values(inside[0]), max_size=2).map(tuple)
    if origin is dict:
        return st.dictionaries(st.text(max_size=6), build_values(inside[1]), max_size=2)
    assert issubclass(hint, msgspec.Struct), f"there is no strategy for {hint}"
    return st.builds(hint, **{name: build_values(one) for name, one in get_type_hints(hint).items()})


# ── histories: facts in any order, with few ids, so that ids repeat ────────────────────────────────────────

CALLS = (
    Call("c1", "look", '{"path": "a"}'),
    Call("c2", "write", '{"path": "a"}'),
    Call("c3", "erase", '{"path": "b"}'),
    Call("c4", "ask_user", '{"question": "which?"}'),
    Call("c1", "look", '{"path":'),
    Call("", "nothing_like_it"),
    Call("c5", "locate", '{"place": "x"}'),
)
CALL_IDS = ("c1", "c2", "c3", "c4", "c5", "c9")
LIMITS = (
    events.Limits(turns=3, calls=3, attempts=2),
    events.Limits(turns=0, calls=1, attempts=1),
    events.Limits(turns=4, calls=1),
    events.Limits(turns=2, calls=0, tokens=30, seconds=40, cost=1.0, attempts=3, retry_seconds=30),
)
SOME_CALLS = ((), CALLS[:1], CALLS[1:3], CALLS[:4], (CALLS[0], CALLS[0]), CALLS[4:])
TEXTS = ("", " ", "so", "né 🎈")
CUTS = (None, events.Truncation(1, 2), events.Truncation(1, 2, "art"))
KINDS: tuple[events.SignalKind, ...] = get_args(events.SignalKind)

_FACTS: list[list[events.AnyFact]] = [
    [events.SessionCreated(session_id="s", limits=limits) for limits in LIMITS],
    [events.SessionRenamed(name="n", by=by) for by in ("user", "auto")],
    [events.SessionMarked(pinned=pinned, archived=archived) for pinned, archived in ((True, None), (None, True))],
    [
        events.MessageReceived(id=id, parts=parts, mode=mode)
        for id, parts, mode in product(
            ("m1", "m2"),
            ((), (TextPart(" "),), (TextPart("do it"),), (ImagePart("aGk="),)),
            ("queue", "interrupt", "follow_up"),
        )
    ],
    [
        events.MessageEdited(id=id, parts=parts)
        for id, parts in product(("m1", "m2", "m9"), ((), (TextPart("do that"),), (ImagePart("aGk="),)))
    ],
    [events.RunRequested(trigger=trigger) for trigger in ("message", "continue", "regenerate", "recover")],
    [events.CancelRequested(by="someone"), events.CancelRequested()],
    [events.RetryRequested(by="someone"), events.RetryRequested()],
    [
        events.RunStarted(run_id="r", limits=limits, trigger=trigger)
        for limits, trigger in product(LIMITS, ("message", "continue", "regenerate", "recover"))
    ],
    [
        events.TurnStarted(turn=turn, messages=messages, wrap_up=wrap_up)
        for turn, messages, wrap_up in product(
            (-1, 1, 2), ((), ("m1",), ("m2", "m9")), (None, "call_limit", "answered")
        )
    ],
    [
        events.ModelReplied(text=text, calls=calls, finish=finish, usage=Usage(3, 5, cost=0.3))
        for text, calls, finish in product(TEXTS, SOME_CALLS, ("stop", "length", "filter"))
    ],
    [
        events.ModelFailed(kind=kind, message="broken", wait=wait, attempt=attempt, partial=partial)
        for kind, wait, attempt, partial in product(
            ("network", "cancelled"), (None, 2.0, 300.0), (1, 9), ("", " ", "I was")
        )
    ],
    [
        events.ApprovalRequested(
            call_id=id, tool="write", arguments={"path": "a/b"}, safety="caution", why="", rule=rule, expires_at=at
        )
        for id, rule, at in product(CALL_IDS, ("", "write(a/**)"), (None, 20.0, 1e6))
    ],
    [
        events.ApprovalAnswered(call_id=id, decision=decision, scope=scope)
        for id, decision, scope in product(CALL_IDS, ("allow", "deny"), ("call", "tool", "pattern", "session"))
    ],
    [
        events.InputRequested(call_id=id, questions=(events.Question("which?"),), expires_at=at)
        for id, at in product(CALL_IDS, (None, 20.0))
    ],
    [events.InputAnswered(call_id=id, answers=answers) for id, answers in product(CALL_IDS, ((), ("this",)))],
    [
        events.CallStarted(call_id=id, tool="look", attempt=attempt, safety=safety)
        for id, attempt, safety in product(CALL_IDS, (1, 3), ("safe", "caution"))
    ],
    [
        events.CallStarted(call_id=id, tool="locate", sandbox=events.CLIENT_SANDBOX, expires_at=at)
        for id, at in product(("c1", "c5"), (None, 20.0))
    ],
    [
        events.MessageReceived(id="m1", parts=(TextPart("go on"),), history=history)
        for history in (
            (UserMessage((TextPart(" "),)), ModelMessage("so", CALLS)),
            (ModelMessage("", CALLS[:2]), ResultMessage("c2", "write", ""), ResultMessage("c9", "look", "lost")),
        )
    ],
    [
        events.CallFinished(call_id=id, tool="look", status=status, output=output, fatal=fatal, truncation=truncation)
        for id, status, output, fatal, truncation in product(CALL_IDS, ("ok", "refused"), TEXTS, (False, True), CUTS)
    ],
    [events.SignalDetected(kind=kind, detail="this") for kind in KINDS],
    [
        events.ContextCompacted(kind=kind, through=through, summary=summary)
        for kind, through, summary in product(("prune", "summary"), (-1, 0, 3, 9, 30, 10**6), ("", "in short"))
    ],
    [events.RunFinished(run_id=id, reason="answered", answer="42") for id in ("r", "run_1")],
    [events.SessionConfigured(agent=agent, model=model) for agent, model in product(("", "coder"), ("", "local"))],
    [
        events.FilesKept(call_id=id, files=(events.KeptFile("a", "x"),), refs=(events.KeptRef("HEAD"),))
        for id in CALL_IDS
    ],
    [events.Rewound(to=to, what=what) for to, what in product((-1, 0, 3, 9, 30), ("files", "conversation", "both"))],
    [events.Custom(name="acme.audit", data={"x": 1})],
]
_SCENES: list[list[events.AnyFact]] = [
    [_FACTS[5][0], _FACTS[6][0], events.ModelReplied(calls=calls, text=text)]
    for calls, text in product((*SOME_CALLS, CALLS[1:4]), ("", "so"))
]
facts: SearchStrategy[events.AnyFact] = st.one_of([st.sampled_from(kind) for kind in _FACTS])
kinds_in_histories = {type(fact) for kind in _FACTS for fact in kind}


def build_history(*story: events.AnyFact | float) -> list[events.AnyFact]:
    """Give facts their positions and times. A number is a pause in seconds before the next fact, or a step back."""
    history: list[events.AnyFact] = []
    now = 0.0
    for piece in story:
        if isinstance(piece, float):
            now += piece
        else:
            history.append(msgspec.structs.replace(piece, seq=len(history) + 1, at=now))
    return history


_times = st.sampled_from((0.0, 0.5, 15.0, -3.0))
histories: SearchStrategy[list[events.AnyFact]] = st.lists(
    st.tuples(facts.map(lambda fact: [fact]) | st.sampled_from(_SCENES), _times), max_size=25
).map(lambda pieces: build_history(*(part for piece, passed in pieces for part in (passed, *piece))))

# ── actions of a model and a person ──────────────────────────────────────────────────────────────────────

_SPENT = (Usage(10, 5, cost=0.01), Usage(10, 25, cost=0.6))
replies: SearchStrategy[Reply] = st.sampled_from(
    [
        Reply(text, "hm", calls, finish, spent)
        for text, calls, finish, spent in product(
            ("", "\n", "Done.", "42", "43", "<stuck>I cannot.</stuck>", "<yield/>Your turn."),
            ((), CALLS[:1], CALLS[:1] * 3, CALLS[1:2], CALLS[2:4], (*CALLS, *CALLS)),
            ("stop", "stop", "stop", "length", "filter"),
            _SPENT,
        )
    ]
)
failures: SearchStrategy[ModelError] = st.sampled_from(
    [
        ModelError("try later", kind="overloaded", retryable=True),
        ModelError("try much later", kind="overloaded", retryable=True, retry_after=300),
        ModelError("oops", kind="internal", retryable=True),
        ModelError("no such key", kind="auth"),
        ModelError("broke off", kind="network", retryable=True, partial="It is "),
    ]
)
foreign_facts: SearchStrategy[events.AnyFact] = st.one_of(
    [
        st.sampled_from([fact for kind in _FACTS for fact in kind if isinstance(fact, chosen)])
        for chosen in (
            events.MessageReceived,
            events.MessageEdited,
            events.RunRequested,
            events.CancelRequested,
            events.RetryRequested,
            events.ApprovalAnswered,
            events.InputAnswered,
            events.ContextCompacted,
            events.SessionRenamed,
            events.SessionMarked,
            events.SessionConfigured,
            events.FilesKept,
            events.Rewound,
            events.Custom,
        )
    ]
)


def fold_story(*story: events.AnyFact | float) -> State:
    """Fold facts in the order they happened."""
    return fold(build_history(*story))
