// OpenAI's SDK for JavaScript: chat and responses, streamed, with a tool.
import assert from "node:assert/strict";
import OpenAI from "openai";

const client = new OpenAI({ baseURL: `${process.env.TREADLE_URL}/v1`, apiKey: process.env.TREADLE_TOKEN });
const parameters = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
const about = { name: "get_weather", description: "Weather.", parameters };
const question = "Please use get_weather for Paris.";

const messages = [{ role: "user", content: question }];
const tools = [{ type: "function", function: about }];
const first = await client.chat.completions.stream({ model: "script", messages, tools }).finalMessage();
assert.equal(first.tool_calls[0].function.arguments, '{"city": "Paris"}');
messages.push(first, { role: "tool", tool_call_id: first.tool_calls[0].id, content: "18 degrees" });
const last = await client.chat.completions.create({ model: "script", messages, tools });
assert.equal(last.choices[0].message.content, "The tool said: 18 degrees");

const flat = [{ type: "function", ...about, strict: false }];
const asked = await client.responses.create({ model: "script", input: question, tools: flat });
const call = asked.output.find((item) => item.type === "function_call");
const input = [{ type: "function_call_output", call_id: call.call_id, output: "18 degrees" }];
const stream = client.responses.stream({ model: "script", input, tools: flat, previous_response_id: asked.id });
assert.equal((await stream.finalResponse()).output_text, "The tool said: 18 degrees");
console.log("openai_sdk: ok");
