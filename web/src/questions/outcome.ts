/** How a question ended: allowed, denied, answered, or no longer asked. */

import type { AnyFact } from "../generated/events.ts";
import { me } from "../store/me.ts";
import type { CallView } from "../view.ts";

/** The fields of a call that say how its question ended. */
type Settled = Pick<CallView, "answer" | "inputAnswer" | "started" | "finished"> & { asked: unknown; inputAsked: unknown };

export interface Outcome {
  kind: "allowed" | "denied" | "answered" | "gone";
  /** Such as "Allowed once". */
  title: string;
  /** Such as "by you", or "nobody answered in time". */
  who: string;
  /** The reason of a denial, or the answers. */
  text: string;
  at: number;
}

const SCOPES = { call: "Allowed once", tool: "Allowed for the tool", pattern: "Allowed by pattern", session: "Allowed for the session" };

/** "by you", "in the terminal" or "by NAME". */
export function nameAnswerer(by: string | undefined): string {
  if (!by) return "";
  if (by === me.value?.name) return "by you";
  return by === "user" ? "in the terminal" : `by ${by}`;
}

/** The same for an answer that this page did not send. */
export function nameOther(who: string): string {
  return who === "by you" ? "by you, on another device" : who;
}

/** How the question of a call ended. Returns null while it is open, and for a call that was not asked about. */
export function readOutcome(call: Settled): Outcome | null {
  const { answer, inputAnswer, finished } = call;
  if (answer) {
    if (answer.by === "expiry") return gone(answer.at, "nobody answered in time");
    const isAllowed = answer.decision === "allow";
    return {
      kind: isAllowed ? "allowed" : "denied",
      title: isAllowed ? SCOPES[answer.scope ?? "call"] : "Denied",
      who: nameAnswerer(answer.by),
      text: answer.comment ?? "",
      at: answer.at,
    };
  }
  if (inputAnswer) {
    if (inputAnswer.by === "expiry") return gone(inputAnswer.at, "nobody answered in time");
    const text = inputAnswer.answers.join(", ");
    return { kind: "answered", title: "Answered", who: nameAnswerer(inputAnswer.by), text, at: inputAnswer.at };
  }
  if (!call.asked && !call.inputAsked) return null;
  if (!finished && !call.started) return null;
  const isStopped = finished?.status === "cancelled";
  return gone((finished ?? call.started)?.at ?? 0, isStopped ? "the run was stopped" : "another answer covers it");
}

function gone(at: number, who: string): Outcome {
  return { kind: "gone", title: "No longer asked", who, text: "", at };
}

/** The same from the last facts of a session that is not on the screen. */
export function findOutcome(facts: readonly AnyFact[], callId: string): Outcome | null {
  const call: Settled = { answer: null, inputAnswer: null, started: null, finished: null, asked: true, inputAsked: null };
  for (const fact of facts) {
    if (!("call_id" in fact) || fact.call_id !== callId) continue;
    if (fact.type === "approval_answered") call.answer = fact;
    else if (fact.type === "input_answered") call.inputAnswer = fact;
    else if (fact.type === "call_started") call.started = fact;
    else if (fact.type === "call_finished") call.finished = fact;
  }
  return readOutcome(call);
}

/** "Allowed once by you" in one line. */
export function printOutcome(outcome: Outcome): string {
  const text = outcome.text ? `: “${outcome.text}”` : "";
  return outcome.kind === "gone" ? `${outcome.title}: ${outcome.who}` : `${outcome.title} ${outcome.who}${text}`.trim();
}
