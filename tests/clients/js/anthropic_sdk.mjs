// Anthropic's SDK for JavaScript: messages, streamed and whole, with a tool.
import assert from "node:assert/strict";
import Anthropic from "@anthropic-ai/sdk";

const client = new Anthropic({ baseURL: process.env.TREADLE_URL, apiKey: process.env.TREADLE_TOKEN });
const input_schema = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
const tools = [{ name: "get_weather", description: "Weather.", input_schema }];
for (const model of ["script", "agent:default"]) {
  const messages = [{ role: "user", content: "Please use get_weather for Paris." }];
  const first = await client.messages.stream({ model, max_tokens: 500, messages, tools }).finalMessage();
  const call = first.content.find((block) => block.type === "tool_use");
  assert.deepEqual(call.input, { city: "Paris" });
  const result = { type: "tool_result", tool_use_id: call.id, content: "18 degrees" };
  messages.push({ role: "assistant", content: first.content }, { role: "user", content: [result] });
  const last = await client.messages.create({ model, max_tokens: 500, messages, tools });
  assert.equal(last.content.at(-1).text, "The tool said: 18 degrees");
}
console.log("anthropic_sdk: ok");
