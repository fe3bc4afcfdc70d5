/** What streams in before it is a fact: the text of the reply, its calls, and the output of running calls. */

import type { AnyDelta, AnyFact } from "../generated/events.ts";

const KEPT_OUTPUT = 20_000;

export interface LiveCall {
  tool: string;
  arguments: string;
}

export interface Live {
  text: string;
  reasoning: string;
  /** When the reasoning and the text began, in milliseconds of the page. 0 means not yet. */
  reasoningAt: number;
  textAt: number;
  calls: LiveCall[];
  /** The end of the output of running calls, by the id of the call. */
  outputs: Map<string, string>;
  /** The last progress of a call, or of the session under "". */
  progress: Map<string, { message: string; done: number | null; total: number | null }>;
}

export function createLive(): Live {
  return { text: "", reasoning: "", reasoningAt: 0, textAt: 0, calls: [], outputs: new Map(), progress: new Map() };
}

export function addDelta(live: Live, delta: AnyDelta): void {
  switch (delta.type) {
    case "text_delta":
      live.textAt ||= performance.now();
      live.text += delta.text;
      break;
    case "reasoning_delta":
      live.reasoningAt ||= performance.now();
      live.reasoning += delta.text;
      break;
    case "call_delta": {
      const call = (live.calls[delta.index] ??= { tool: "", arguments: "" });
      call.tool += delta.tool ?? "";
      call.arguments += delta.arguments ?? "";
      break;
    }
    case "output_delta":
      live.outputs.set(delta.call_id, ((live.outputs.get(delta.call_id) ?? "") + delta.text).slice(-KEPT_OUTPUT));
      break;
    case "progress":
      live.progress.set(delta.call_id ?? "", {
        message: delta.message,
        done: delta.done ?? null,
        total: delta.total ?? null,
      });
  }
}

/** Forget what a fact replaces. Without a fact, forget everything. */
export function clearLive(live: Live, fact?: AnyFact): void {
  if (fact?.type === "call_finished") {
    live.outputs.delete(fact.call_id);
    live.progress.delete(fact.call_id);
    return;
  }
  const endsReply = !fact || ["model_replied", "model_failed", "run_finished", "turn_started", "rewound"].includes(fact.type);
  if (endsReply) {
    live.text = live.reasoning = "";
    live.reasoningAt = live.textAt = 0;
    live.calls = [];
  }
  if (!fact || fact.type === "run_finished") {
    live.outputs.clear();
    live.progress.clear();
  }
}
