"""LangChain: a tool loop over Chat Completions, Responses and Messages, and a stream."""

import os

from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

URL, TOKEN = os.environ["TREADLE_URL"], os.environ["TREADLE_TOKEN"]


@tool
def get_weather(city: str) -> str:
    """Tell the weather of a city."""
    return f"18 degrees in {city}"


MODELS = (
    ChatOpenAI(model="script", base_url=f"{URL}/v1", api_key=TOKEN),
    ChatOpenAI(model="script", base_url=f"{URL}/v1", api_key=TOKEN, use_responses_api=True),
    ChatAnthropic(model="script", base_url=URL, api_key=TOKEN),
)
for model in MODELS:
    messages = [HumanMessage("Please use get_weather for Paris.")]
    first = model.bind_tools([get_weather]).invoke(messages)
    assert first.tool_calls[0]["args"] == {"city": "Paris"}, first
    call = first.tool_calls[0]
    messages += [first, ToolMessage(get_weather.invoke(call["args"]), tool_call_id=call["id"])]
    last = model.bind_tools([get_weather]).invoke(messages)
    assert last.text == "The tool said: 18 degrees in Paris", last
    text = "".join(chunk.text for chunk in model.stream("Hello"))
    assert text == "I have read 1 messages.", text
print("langchain: ok")
