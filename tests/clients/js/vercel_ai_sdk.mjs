// Vercel's AI SDK over Chat Completions, Responses and Messages: three turns, the second with a tool.
import assert from "node:assert/strict";
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { isStepCount, streamText, tool } from "ai";
import { z } from "zod";

const options = { baseURL: `${process.env.TREADLE_URL}/v1`, apiKey: process.env.TREADLE_TOKEN };
const get_weather = tool({
  description: "Weather.",
  inputSchema: z.object({ city: z.string() }),
  execute: async ({ city }) => `18 degrees in ${city}`,
});
const models = {
  chat: createOpenAICompatible({ name: "treadle", ...options })("script"),
  openaiChat: createOpenAI(options).chat("script"),
  responses: createOpenAI(options).responses("script"),
  messages: createAnthropic(options)("script"),
};
for (const [name, model] of Object.entries(models)) {
  const messages = [];
  const turn = async (content, expected) => {
    messages.push({ role: "user", content });
    const done = streamText({ model, messages, tools: { get_weather }, stopWhen: isStepCount(3) });
    assert.equal(await done.text, expected, name);
    messages.push(...(await done.response).messages);
  };
  await turn("Hello", "I have read 1 messages.");
  await turn("Please use get_weather for Paris.", "The tool said: 18 degrees in Paris");
  await turn("Thanks", "I have read 3 messages.");
}
console.log("vercel_ai_sdk: ok");
