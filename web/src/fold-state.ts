/** Questions about a view: its status, its open questions, and the state that the server computes from the same facts. */

import type { CallStatus, CallView, OpenQuestion, RunStatus, UsageView, View } from "./view.ts";
import type { Access, Part } from "./generated/events.ts";

/** The state of a session at one position, equal to what `GET /v1/sessions/{id}/state` answers. */
export interface StateView {
  seq: number;
  name: string;
  agent: string;
  model: string;
  access: Access | null;
  pinned: boolean;
  archived: boolean;
  status: RunStatus;
  queue: { id: string; text: string; mode: string }[];
  run: { id: string; turns: number; calls: number; input_tokens: number; output_tokens: number; cost: number } | null;
  last: { reason: string; error: string; can_continue: boolean; answer: string } | null;
  messages: { role: "user" | "assistant"; text: string; seq: number }[];
  calls: { id: string; tool: string; status: CallStatus }[];
  pending: string[];
  changed_files: string[];
  usage: Omit<UsageView, "estimated">;
  plan: unknown;
  retry_at: number | null;
  rewound: number;
  compacted: number;
}

/** The question of a call that is not answered yet. */
function findQuestion(call: CallView): OpenQuestion["fact"] | null {
  if (call.finished !== null) return null;
  if (call.asked !== null && call.answer === null) return call.asked;
  return call.inputAsked !== null && call.inputAnswer === null ? call.inputAsked : null;
}

/** The open questions, in the order of their calls. A running call may have some too. */
export function openQuestions(view: View): OpenQuestion[] {
  const found: OpenQuestion[] = [];
  for (const owner of view.turn?.calls ?? []) {
    for (const call of [owner, ...owner.requests]) {
      const fact = findQuestion(call);
      if (fact !== null) found.push({ callId: fact.call_id, call, fact });
    }
  }
  return found;
}

/** When the model is asked again, if the run waits for its provider. In seconds since 1970. */
export function retryAt(view: View): number | null {
  return view.run === null ? null : (view.turn?.retryAt ?? null);
}

export function statusOf(view: View): RunStatus {
  if (openQuestions(view).length > 0) return "waiting";
  if (retryAt(view) !== null) return "retrying";
  return view.run === null ? "idle" : "running";
}

/** How a call ended, or how far it has come. */
export function callStatus(call: CallView): CallStatus {
  if (call.finished !== null) return call.finished.status;
  if (findQuestion(call) !== null) return "asked";
  if (call.started !== null) return "running";
  return call.answer?.decision === "allow" ? "allowed" : "queued";
}

/** The text of a message, without what is attached to it. */
export function readText(parts: readonly Part[]): string {
  return parts.flatMap((part) => (part.type === "text" ? [part.text] : [])).join("\n");
}

/** Describe a view as the server describes the same position. */
export function describeState(view: View): StateView {
  const { run, last, usage } = view;
  return {
    seq: view.seq, name: view.name, agent: view.agent, model: view.model, access: view.access, pinned: view.pinned,
    archived: view.archived, status: statusOf(view),
    queue: view.queue.map(({ id, parts, mode }) => ({ id, text: readText(parts), mode })),
    run: run && {
      id: run.id, turns: run.turns, calls: run.calls, input_tokens: run.usage.input_tokens,
      output_tokens: run.usage.output_tokens, cost: roundCost(run.usage.cost),
    },
    last: last && {
      reason: last.reason, error: last.error ?? "", can_continue: last.can_continue ?? false, answer: last.answer ?? "",
    },
    messages: listMessages(view),
    calls: view.items.flatMap((item) =>
      item.kind === "turn" ? item.calls.map((one) => ({ id: one.call.id, tool: one.call.tool, status: callStatus(one) })) : [],
    ),
    pending: openQuestions(view).map((question) => question.callId),
    changed_files: [...view.changedFiles],
    usage: {
      input_tokens: usage.input_tokens, output_tokens: usage.output_tokens, cached_tokens: usage.cached_tokens,
      reasoning_tokens: usage.reasoning_tokens, cost: roundCost(usage.cost),
    },
    plan: view.notes.get("treadle.todo") ?? null,
    retry_at: retryAt(view), rewound: view.rewound, compacted: view.compacted,
  };
}

function listMessages(view: View): StateView["messages"] {
  const messages: StateView["messages"] = [];
  for (const item of view.items) {
    if (item.kind === "message") messages.push({ role: "user", text: readText(item.message.parts), seq: item.seq });
    else if (item.kind === "turn" && item.reply?.text) {
      messages.push({ role: "assistant", text: item.reply.text, seq: item.reply.seq });
    }
  }
  return messages;
}

/** Sums of costs differ in their last digits between languages. */
function roundCost(cost: number): number {
  return Number(cost.toFixed(9));
}
