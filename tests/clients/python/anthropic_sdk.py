"""Anthropic's SDK: messages whole and streamed, a tool, thinking, counting, and an agent as a model."""

import os

from anthropic import Anthropic, AuthenticationError

URL, TOKEN = os.environ["TREADLE_URL"], os.environ["TREADLE_TOKEN"]
client = Anthropic(base_url=URL, api_key=TOKEN)
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL = {"name": "get_weather", "description": "Weather.", "input_schema": SCHEMA}
QUESTION = "Please use get_weather for Paris."


def check_tools(model: str) -> None:
    messages = [{"role": "user", "content": QUESTION}]
    with client.messages.stream(model=model, max_tokens=500, messages=messages, tools=[TOOL]) as stream:
        first = stream.get_final_message()
    assert first.stop_reason == "tool_use", first
    call = first.content[-1]
    assert call.type == "tool_use" and call.input == {"city": "Paris"}
    result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "18 degrees"}]}
    messages += [{"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
    last = client.messages.create(model=model, max_tokens=500, messages=messages, tools=[TOOL])
    assert last.content[-1].text == "The tool said: 18 degrees", last
    assert last.stop_reason == "end_turn"


check_tools("script")
check_tools("agent:default")
counted = client.messages.count_tokens(model="script", messages=[{"role": "user", "content": "Hello there"}])
assert counted.input_tokens > 0
done = client.messages.create(
    model="agent:default", max_tokens=500, messages=[{"role": "user", "content": "Please use calculate now."}]
)
assert done.content[-1].text == "The tool said: 42", done
assert "script" in [model.id for model in client.models.list()]
stranger = Anthropic(base_url=URL, api_key="wrong-token-of-a-test", max_retries=0)
refusal = None
try:
    stranger.messages.create(model="script", max_tokens=5, messages=[{"role": "user", "content": "Hello"}])
except AuthenticationError as error:
    refusal = error.body["error"]["type"]
assert refusal == "authentication_error", refusal
print("anthropic_sdk: ok")
