"""The events of Responses add up to the whole response, and no item of a client breaks the reader."""

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from openai import omit
from openai._models import construct_type
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types.responses import ResponseStreamEvent

from tests.kit.recorded_runs import encode
from treadle.dialects.responses_events import ResponsesDialect
from treadle.dialects.responses_objects import ResponseObject
from treadle.dialects.responses_requests import ConversationReader, list_items
from treadle.dialects.responses_tools import MAX_NAME_LENGTH, NamedTool, ResponsesTool, ToolTable
from treadle.errors import BadInput
from treadle.events import ReasoningDelta, TextDelta
from treadle.messages import Call, Reply

TEXT = st.text(st.characters(codec="utf-8"), min_size=1, max_size=5)
TOOLS = ToolTable(
    [
        ResponsesTool(name="add"),
        ResponsesTool("custom", "patch"),
        ResponsesTool("namespace", "ns", tools=[NamedTool(name="wait")]),
    ]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | TEXT,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["text", "type", "id"]), inner),
    max_leaves=4,
)
KINDS = [
    *("message", "reasoning", "function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output"),
    *("item_reference", "web_search_call", "compaction"),
]
FIELDS = [
    "role",
    "content",
    "summary",
    "encrypted_content",
    "call_id",
    "name",
    "namespace",
    "arguments",
    "output",
    "input",
]


@given(
    st.lists(st.tuples(st.booleans(), TEXT), max_size=6),
    st.lists(st.sampled_from(["add", "patch", "ns__wait", "other"]), max_size=3),
    st.sampled_from(["", '{"owner":"x"}']),
    st.sampled_from(["stop", "length"]),
)
def test_the_events_add_up_to_the_whole_response(
    pieces: list[tuple[bool, str]], called: list[str], opaque: str, finish: Any
) -> None:
    dialect = ResponsesDialect(ResponseObject("resp_1", 1, "m"), TOOLS, wants_state=True)
    text = "".join(piece for is_text, piece in pieces if is_text)
    reasoning = "".join(piece for is_text, piece in pieces if not is_text)
    calls = tuple(Call(f"c{place}", name, '{"input":"x"}') for place, name in enumerate(called))
    events = list(dialect.begin())
    for is_text, piece in pieces:
        events += dialect.feed(TextDelta(text=piece) if is_text else ReasoningDelta(text=piece))
    events += dialect.feed(Reply(text, reasoning, calls, finish, opaque=opaque, model="m"))
    frames = encode(events)
    assert [frame["sequence_number"] for frame in frames] == list(range(len(frames)))
    state: Any = ResponseStreamState(input_tools=[], text_format=omit)
    added: dict[int, dict[str, Any]] = {}
    for frame in frames:
        if frame["type"] == "response.output_item.done":
            added[frame["output_index"]] = frame["item"]
        told = state.handle_event(construct_type(type_=ResponseStreamEvent, value=frame))
        if frame["type"] == "response.output_text.delta":  # OpenAI's client has added up the deltas so far
            assert text.startswith(told[0].snapshot) and told[0].snapshot.endswith(frame["delta"])
    whole = frames[-1]["response"]
    if finish == "stop":
        assert state._completed_response.output_text == text
    assert whole["output"] == [added[place] for place in range(len(added))]
    texts = [part["text"] for item in whole["output"] if item["type"] == "message" for part in item["content"]]
    assert texts == ([text] if text else [])
    shown = [part["text"] for item in whole["output"] if item["type"] == "reasoning" for part in item["summary"]]
    assert "".join(shown) == reasoning


@given(st.lists(st.fixed_dictionaries({"type": st.sampled_from(KINDS)}, optional=dict.fromkeys(FIELDS, JSON))))
def test_an_item_of_a_client_is_read_or_refused_by_its_place(items: list[dict[str, Any]]) -> None:
    reader, problem = ConversationReader(TOOLS), None
    try:
        reader.add_items(list_items(msgspec.json.decode(msgspec.json.encode(items))))
    except BadInput as error:
        problem = error
    assert problem is None or (problem.param or "").startswith("input"), (problem, items)


@given(st.text("ab_", min_size=1, max_size=80), st.text("ab_", min_size=1, max_size=80))
def test_a_flattened_name_is_short_and_leads_back_to_its_tool(namespace: str, name: str) -> None:
    plain = f"{namespace}__{name}"[:MAX_NAME_LENGTH]
    table = ToolTable([ResponsesTool(name=plain), ResponsesTool("namespace", namespace, tools=[NamedTool(name=name)])])
    (_, flat) = (spec.name for spec in table.choose(None)[0])
    assert len(flat) <= MAX_NAME_LENGTH and table.find_client_tool(flat) == (name, namespace, False)
    assert table.find_client_tool(plain) == (plain, "", False)
