/** What streams in before it is a fact. */

import assert from "node:assert/strict";
import { test } from "node:test";
import type { AnyFact } from "../src/generated/events.ts";
import { addDelta, clearLive, createLive } from "../src/store/live.ts";

function fact(fields: Record<string, unknown>): AnyFact {
  return { seq: 1, at: 1, ...fields } as unknown as AnyFact;
}

test("pieces of text, reasoning and calls are joined", () => {
  const live = createLive();
  addDelta(live, { type: "reasoning_delta", text: "Let me " });
  addDelta(live, { type: "reasoning_delta", text: "think" });
  addDelta(live, { type: "text_delta", text: "A" });
  addDelta(live, { type: "call_delta", index: 1, tool: "shell" });
  addDelta(live, { type: "call_delta", index: 1, arguments: '{"command"' });
  addDelta(live, { type: "call_delta", index: 0, tool: "read_file", arguments: "{}" });
  assert.deepEqual([live.reasoning, live.text], ["Let me think", "A"]);
  assert.deepEqual(live.calls, [{ tool: "read_file", arguments: "{}" }, { tool: "shell", arguments: '{"command"' }]);
  assert.ok(live.reasoningAt > 0 && live.textAt >= live.reasoningAt);
});

test("the output of a call keeps its end, and only until the call ends", () => {
  const live = createLive();
  for (let number = 0; number < 5000; number++) addDelta(live, { type: "output_delta", call_id: "a", text: `line ${number}\n` });
  addDelta(live, { type: "output_delta", call_id: "b", text: "other" });
  addDelta(live, { type: "progress", call_id: "a", message: "half", done: 1, total: 2 });
  assert.ok((live.outputs.get("a") ?? "").endsWith("line 4999\n") && (live.outputs.get("a") ?? "").length <= 20_000);
  clearLive(live, fact({ type: "call_finished", call_id: "a" }));
  assert.deepEqual([[...live.outputs], live.progress.size], [[["b", "other"]], 0]);
});

test("only facts that end a reply replace its text", () => {
  for (const type of ["model_replied", "model_failed", "run_finished", "turn_started", "rewound"]) {
    const live = createLive();
    addDelta(live, { type: "text_delta", text: "A" });
    clearLive(live, fact({ type: "message_received", id: "m", parts: [] }));
    assert.equal(live.text, "A");
    clearLive(live, fact({ type }));
    assert.deepEqual([live.text, live.textAt, live.calls], ["", 0, []], type);
  }
});
