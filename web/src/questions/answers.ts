/** Sends answers, and knows which questions this page has answered. */

import { signal } from "@preact/signals";
import { api, ApiError, sessionPath } from "../api.ts";
import type { SessionDetail } from "../generated/api.ts";
import { questions, setQuestions } from "../store/sessions.ts";
import type { Ask } from "./ask.ts";

export interface Sending {
  state: "sending" | "sent" | "failed";
  error: string;
}

export interface ApprovalChoice {
  decision: "allow" | "deny";
  scope?: "call" | "tool" | "pattern" | "session";
  comment?: string;
  /** Save the rule for the workspace. */
  keep?: boolean;
}

/** What became of the answers of this page, by the id of the question. */
export const sendings = signal<ReadonlyMap<string, Sending>>(new Map());

/** The path of a question. Slashes of a call's id stay as they are. */
export function askPath(ask: Ask, kind: "approvals" | "answers"): string {
  return sessionPath(ask.sessionId, `/${kind}/${ask.callId.split("/").map(encodeURIComponent).join("/")}`);
}

export function sendApproval(ask: Ask, choice: ApprovalChoice): Promise<boolean> {
  return send(ask, () => api.post(askPath(ask, "approvals"), { ...choice, ...(ask.digest ? { digest: ask.digest } : {}) }));
}

export function sendAnswers(ask: Ask, answers: string[]): Promise<boolean> {
  return send(ask, () => api.post(askPath(ask, "answers"), { answers }));
}

async function send(ask: Ask, post: () => Promise<void>): Promise<boolean> {
  if (sendings.value.get(ask.id)?.state === "sending") return false;
  note(ask.id, { state: "sending", error: "" });
  try {
    await post();
    note(ask.id, { state: "sent", error: "" });
    return true;
  } catch (error) {
    note(ask.id, { state: "failed", error: await describeFailure(ask, error) });
    return false;
  }
}

async function describeFailure(ask: Ask, error: unknown): Promise<string> {
  const status = error instanceof ApiError ? error.status : -1;
  if (status === 0) return "No connection to the server. Answer again when it is back.";
  const text = error instanceof Error ? error.message : String(error);
  if (status !== 409) return text;
  const isOpen = await refreshQuestions(ask);
  return isOpen ? "Your answer was for another question than the one that is asked now. Nothing was allowed. Read it again." : text;
}

/** Show the questions of the session as they are now. Returns whether this one is still open. */
async function refreshQuestions({ sessionId, callId }: Ask): Promise<boolean> {
  try {
    const { pending } = await api.get<SessionDetail>(sessionPath(sessionId));
    setQuestions(sessionId, pending);
  } catch {
    // What the page knew last is as good as it gets.
  }
  return (questions.peek().get(sessionId) ?? []).some((one) => one.call_id === callId);
}

/** Whether the answer of this page is the one that counts. */
export function isAnsweredHere(id: string): boolean {
  return sendings.peek().get(id)?.state === "sent";
}

function note(id: string, sending: Sending): void {
  const all = new Map(sendings.value).set(id, sending);
  // Old ones are of no use: their questions are gone.
  for (const old of [...all.keys()].slice(0, -100)) all.delete(old);
  sendings.value = all;
}
