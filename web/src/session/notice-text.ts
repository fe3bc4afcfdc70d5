/** The sentences of notices: what happened, and what it means. */

import type { ModelFailed, RunFinished, SessionConfigured, SignalDetected } from "../generated/events.ts";
import { formatClock, formatCost, formatCount, formatDuration, formatModel, formatTime, plural } from "../ui/format.ts";
import type { NoticeItem, RunView, TurnItem } from "../view.ts";
import type { IconName } from "../ui/icon.tsx";

const SIGNALS: Partial<Record<SignalDetected["kind"], string>> = {
  doom_loop: "The agent repeated the same calls.",
  stuck: "The agent says that it is stuck.",
  uncertain: "The agent is not sure.",
  empty_reply: "The model answered nothing. It is asked again.",
  invalid_output: "The answer has not the wanted form. The model is asked again.",
  stray_calls: "The model called tools that were not offered.",
  tool_retry: "A call failed and was tried again.",
  compaction_failed: "The context could not be compacted.",
};

const ACCESS = { plan: "Plan only", "read-only": "Asks before changes", sandbox: "Works in the sandbox", full: "Full access" };

export const FAILURES: Record<ModelFailed["kind"], string> = {
  overloaded: "The provider is overloaded", network: "The provider cannot be reached", stalled: "The provider sent no data",
  quota: "The quota is used up", auth: "The key was refused", bad_request: "The provider refused the request",
  content_filter: "The provider’s filter stopped the reply", internal: "The provider failed", too_long: "The context is full",
  cancelled: "The reply was broken off",
};

/** The quiet line of a notice. Empty if there is nothing to tell. */
export function describeNotice(item: NoticeItem): string {
  const { fact } = item;
  switch (fact.type) {
    case "signal_detected":
      return describeSignal(fact);
    case "session_configured":
      return describeSettings(fact);
    case "rewound": {
      const what = { both: "files and conversation", files: "files only", conversation: "conversation only" };
      return `Rewound to fact ${fact.to}, ${what[fact.what ?? "both"]}.`;
    }
    case "run_started":
      return RUNS[fact.trigger ?? "message"] ?? "";
    case "context_compacted":
      return fact.kind === "undo" ? "The last compaction was taken back." : "";
    case "run_finished":
      return "";
  }
}

const RUNS: Partial<Record<string, string>> = {
  continue: "The run was continued.",
  regenerate: "The last answer was asked for again.",
  resume: "The run went on from a checkpoint.",
  recover: "The run went on after the server had stopped.",
};

function describeSignal(fact: SignalDetected): string {
  if (fact.kind === "hook") return fact.detail ? "A hook says:" : "";
  return SIGNALS[fact.kind] ?? "";
}

/** The settings that a person can name. Others are not told. */
function describeSettings(fact: SessionConfigured): string {
  const told: string[] = [];
  if (fact.agent) told.push(`agent ${fact.agent}`);
  if (fact.model) told.push(`model ${formatModel(fact.model)}`);
  if (fact.access) told.push(`access “${ACCESS[fact.access]}”`);
  if (fact.web === false) told.push("no web");
  if (fact.web === true) told.push("web");
  if (fact.limits) told.push("other limits");
  if (fact.approve?.length) told.push(`allowed ${fact.approve.join(", ")}`);
  return told.length > 0 ? `From now on: ${told.join(", ")}.` : "";
}

/** What a failure of the model was: "The provider is overloaded (529)" */
export function nameFailure(fact: ModelFailed): string {
  return `${FAILURES[fact.kind] ?? "The model failed"}${fact.status ? ` (${fact.status})` : ""}`;
}

/** "Try 2 of 5 in 8 s." or "Try 2 in 8 s, until 14:30." */
export function describeNextTry(fact: ModelFailed, run: RunView | null, seconds: number): string {
  const attempt = (fact.attempt ?? 1) + 1;
  const isOwn = fact.give_up_at === undefined || fact.give_up_at === null;
  const most = isOwn && run ? ` of ${Math.max(attempt, run.limits.attempts)}` : "";
  const until = isOwn ? "" : `, until ${formatTime(fact.give_up_at ?? 0)}`;
  const left = Math.max(0, Math.ceil(seconds));
  const when = left < 60 ? `in ${left}\u202fs` : `in ${formatClock(left)}`;
  return `Try ${attempt}${most} ${left > 0 ? when : "now"}${until}.`;
}

/** When the model has answered after all. */
export function describeRetries(item: TurnItem): string {
  const last = item.failures.at(-1);
  if (!last) return "";
  const lost = item.failures.reduce((sum, one) => sum + (one.wait ?? 0), 0);
  return `${nameFailure(last)}. Try ${item.failures.length + 1} worked, after ${formatDuration(lost)}.`;
}

export interface Ending {
  icon: IconName;
  iconClass: string;
  title: string;
  text: string;
}

const LIMITS: Partial<Record<RunFinished["reason"], string>> = {
  turn_limit: "turns", call_limit: "calls", token_limit: "tokens", time_limit: "time", cost_limit: "cost",
};

/** How a run ended: outcome and why. */
export function describeEnding(fact: RunFinished): Ending {
  const error = tidy(fact.error ?? "");
  switch (fact.reason) {
    case "answered":
      return { icon: "check", iconClass: "good", title: "Done", text: "" };
    case "cancelled":
      return { icon: "stop", iconClass: "m3", title: "Stopped", text: error };
    case "failed": {
      const [first = "", ...rest] = error.split(/(?<=[.:]) /);
      const isShort = first.length > 0 && first.length <= 80;
      const title = isShort ? `Failed: ${lower(first.replace(/[.:]$/, ""))}` : "Failed";
      return { icon: "fail", iconClass: "bad", title, text: isShort ? tidy(rest.join(" ")) : error };
    }
    case "doom_loop":
      return { icon: "stop", iconClass: "m3", title: "Stopped: the agent repeated the same calls", text: error };
    case "stuck":
      return { icon: "stop", iconClass: "m3", title: "Stopped: the agent is stuck", text: error };
    case "yielded":
      return { icon: "stop", iconClass: "m3", title: "The agent asks you to take over", text: error };
    default:
      return { icon: "clock", iconClass: "m3", title: `Stopped at the limit of ${nameLimit(fact)}`, text: error };
  }
}

function nameLimit(fact: RunFinished): string {
  if (fact.reason === "turn_limit" && fact.turns) return plural(fact.turns, "turn");
  if (fact.reason === "call_limit" && fact.calls) return plural(fact.calls, "call");
  if (fact.reason === "cost_limit" && fact.usage?.cost) return formatCost(fact.usage.cost);
  return LIMITS[fact.reason] ?? fact.reason;
}

function tidy(text: string): string {
  const trimmed = text.trim();
  return trimmed ? trimmed[0]?.toUpperCase() + trimmed.slice(1) : "";
}

/** A name such as "API" keeps its capitals. */
function lower(text: string): string {
  return /^[A-Z][a-z ]/.test(text) ? (text[0]?.toLowerCase() ?? "") + text.slice(1) : text;
}

/** "9:41, 17 turns, $0.52" */
export function describeEffort(fact: RunFinished, startedAt: number): string {
  const parts: string[] = [];
  if (startedAt > 0) parts.push(formatDuration(Math.max(0, fact.at - startedAt)));
  if (fact.turns) parts.push(plural(fact.turns, "turn"));
  if (fact.usage?.cost) parts.push(formatCost(fact.usage.cost));
  else if (fact.usage?.output_tokens) parts.push(`${formatCount(fact.usage.output_tokens)} tokens written`);
  return parts.join(", ");
}
