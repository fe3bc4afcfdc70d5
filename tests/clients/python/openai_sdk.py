"""OpenAI's SDK: chat, responses, stored and background responses, embeddings, and an agent as a model."""

import json
import os
import time

from openai import OpenAI

client = OpenAI(base_url=os.environ["TREADLE_URL"] + "/v1", api_key=os.environ["TREADLE_TOKEN"])
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
CHAT_TOOL = {"type": "function", "function": {"name": "get_weather", "description": "Weather.", "parameters": SCHEMA}}
TOOL = {"type": "function", "name": "get_weather", "description": "Weather.", "parameters": SCHEMA, "strict": False}
QUESTION = "Please use get_weather for Paris."


def check_chat() -> None:
    messages = [{"role": "user", "content": QUESTION}]
    first = client.chat.completions.create(model="script", messages=messages, tools=[CHAT_TOOL]).choices[0]
    assert first.finish_reason == "tool_calls", first
    (call,) = first.message.tool_calls
    assert json.loads(call.function.arguments) == {"city": "Paris"}
    messages += [first.message, {"role": "tool", "tool_call_id": call.id, "content": "18 degrees"}]
    chunks = list(
        client.chat.completions.create(
            model="script", messages=messages, tools=[CHAT_TOOL], stream=True, stream_options={"include_usage": True}
        )
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == "The tool said: 18 degrees", text
    assert chunks[-1].usage.total_tokens == 25 and not chunks[-1].choices
    two = client.chat.completions.create(model="script", messages=[{"role": "user", "content": "Hello"}], n=2)
    assert [choice.index for choice in two.choices] == [0, 1]


def check_responses() -> None:
    first = client.responses.create(model="script", input=QUESTION, tools=[TOOL])
    (call,) = [item for item in first.output if item.type == "function_call"]
    assert isinstance(first.created_at, int | float) and first.status == "completed" and first.store
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "18 degrees"}
    second = client.responses.create(model="script", input=[result], tools=[TOOL], previous_response_id=first.id)
    assert second.output_text == "The tool said: 18 degrees", second
    assert client.responses.retrieve(second.id).output_text == second.output_text
    items = client.responses.input_items.list(second.id, order="asc").data
    assert items[-1].type == "function_call_output", items
    client.responses.delete(second.id)
    with client.responses.stream(model="script", input="Hello") as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert final.output_text == "I have read 1 messages.", final
    again = list(client.responses.retrieve(final.id, stream=True, starting_after=2))
    assert [event.sequence_number for event in again] == [
        event.sequence_number for event in events if event.sequence_number > 2
    ]


def check_background() -> None:
    started = client.responses.create(model="script", input="Hello", background=True)
    assert started.status in ("queued", "in_progress", "completed")
    while started.status in ("queued", "in_progress"):
        time.sleep(0.05)
        started = client.responses.retrieve(started.id)
    assert started.output_text == "I have read 1 messages."


def check_agent() -> None:
    asked = [{"role": "user", "content": "Please use calculate now."}]
    done = client.chat.completions.create(model="agent:default", messages=asked)
    assert done.choices[0].message.content == "The tool said: 42", done
    session = done.model_extra["treadle"]["session_id"]
    more = client.chat.completions.create(
        model="agent:default", messages=[{"role": "user", "content": "Hello"}], extra_body={"session_id": session}
    )
    assert more.choices[0].message.content == "I have read 2 messages.", more
    mixed = [{"role": "user", "content": QUESTION}]
    first = client.chat.completions.create(model="agent:default", messages=mixed, tools=[CHAT_TOOL]).choices[0]
    (call,) = first.message.tool_calls
    mixed += [first.message, {"role": "tool", "tool_call_id": call.id, "content": "18 degrees"}]
    last = client.chat.completions.create(model="agent:default", messages=mixed, tools=[CHAT_TOOL])
    assert last.choices[0].message.content == "The tool said: 18 degrees", last
    answer = client.responses.create(model="agent:default", input="Please use calculate now.")
    assert answer.output_text == "The tool said: 42", answer


check_chat()
check_responses()
check_background()
check_agent()
vectors = client.embeddings.create(model="script", input=["a", "b"]).data
assert [vector.embedding for vector in vectors] == [[0.5, 0.25]] * 2
assert "script" in [model.id for model in client.models.list()]
print("openai_sdk: ok")
