"""litellm: chat, responses and messages, whole and streamed."""

import os

import litellm

URL, TOKEN = os.environ["TREADLE_URL"], os.environ["TREADLE_TOKEN"]
HELLO = [{"role": "user", "content": "Hello"}]
for model, base in (("openai/script", f"{URL}/v1"), ("anthropic/script", URL)):
    whole = litellm.completion(model=model, api_base=base, api_key=TOKEN, messages=HELLO, max_tokens=500)
    assert whole.choices[0].message.content == "I have read 1 messages.", whole
    chunks = litellm.completion(model=model, api_base=base, api_key=TOKEN, messages=HELLO, max_tokens=500, stream=True)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == "I have read 1 messages.", text
answer = litellm.responses(model="openai/script", api_base=f"{URL}/v1", api_key=TOKEN, input="Hello")
assert answer.output[-1].content[0].text == "I have read 1 messages.", answer
print("litellm: ok")
