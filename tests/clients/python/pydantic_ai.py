"""Pydantic AI: an agent with a tool over Chat Completions, Responses and Messages."""

import os

from pydantic_ai import Agent
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

URL, TOKEN = os.environ["TREADLE_URL"], os.environ["TREADLE_TOKEN"]
openai = OpenAIProvider(base_url=f"{URL}/v1", api_key=TOKEN)
anthropic = AnthropicProvider(base_url=URL, api_key=TOKEN)


def get_weather(city: str) -> str:
    """Tell the weather of a city."""
    return f"18 degrees in {city}"


for model in (
    OpenAIChatModel("script", provider=openai),
    OpenAIResponsesModel("script", provider=openai),
    AnthropicModel("script", provider=anthropic),
):
    agent = Agent(model, tools=[get_weather])
    done = agent.run_sync("Please use get_weather for Paris.")
    assert done.output == "The tool said: 18 degrees in Paris", done
    more = agent.run_sync("Hello", message_history=done.all_messages())
    assert more.output == "I have read 2 messages.", more
print("pydantic_ai: ok")
