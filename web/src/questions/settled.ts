/** How the questions of today ended: those that this page saw open, and those that the logs of today's sessions have. */

import { effect, signal } from "@preact/signals";
import type { PendingQuestion, SessionView } from "../generated/api.ts";
import type { AnyFact } from "../generated/events.ts";
import { openQuestions, sessions } from "../store/sessions.ts";
import { readAsk, readPending, type Ask } from "./ask.ts";
import { findOutcome, type Outcome } from "./outcome.ts";
import { fetchTail } from "./tail.ts";

export interface Settled {
  ask: Ask;
  outcome: Outcome;
  /** The question was open in front of the reader. */
  wasShown: boolean;
}

/** By the id of the question. */
export const settled = signal<ReadonlyMap<string, Settled>>(new Map());
const GONE: Outcome = { kind: "gone", title: "No longer asked", who: "", text: "", at: 0 };
const MOST_SESSIONS = 12;
const MOST_KEPT = 200;
/** The position up to which the log of a session was searched. */
const searched = new Map<string, number>();

/** Note how each question ends that is open now or later. Returns a function that stops it. */
export function followSettled(): () => void {
  let before: ReadonlyMap<string, PendingQuestion> = new Map();
  return effect(() => {
    const open = new Map(openQuestions.value.map((one) => [one.id, one]));
    for (const one of before.values()) if (!open.has(one.id)) void findEnd(readPending(one));
    before = open;
  });
}

async function findEnd(ask: Ask): Promise<void> {
  const facts = await fetchTail(ask.sessionId).catch(() => null);
  if (!facts) return; // the session was deleted, or there is no connection
  keep([{ ask, outcome: findOutcome(facts, ask.callId) ?? { ...GONE, at: Date.now() / 1000 }, wasShown: true }]);
}

/** Find the answers of today in the sessions that changed last. */
export async function loadSettled(): Promise<void> {
  const started = [...sessions.peek().values()].filter((one) => one.turns > 0 && one.updated_at >= startOfDay());
  const changed = started.filter((one) => searched.get(one.id) !== one.seq);
  await Promise.all(changed.sort((a, b) => b.updated_at - a.updated_at).slice(0, MOST_SESSIONS).map(search));
}

/** Find the answers at the end of the log of one session. */
export async function search({ id, seq }: Pick<SessionView, "id" | "seq">): Promise<void> {
  const facts = await fetchTail(id).catch((): AnyFact[] => []);
  searched.set(id, seq);
  const found: Settled[] = [];
  for (const fact of facts) {
    if (fact.type !== "approval_requested" && fact.type !== "input_requested") continue;
    const outcome = findOutcome(facts, fact.call_id);
    if (outcome) found.push({ ask: readAsk(id, fact), outcome, wasShown: false });
  }
  keep(found);
}

function keep(found: readonly Settled[]): void {
  if (found.length === 0) return;
  const all = new Map(settled.value);
  for (const one of found) if (one.wasShown || !all.has(one.ask.id)) all.set(one.ask.id, one);
  const newest = [...all].sort((a, b) => b[1].outcome.at - a[1].outcome.at);
  settled.value = new Map(newest.slice(0, MOST_KEPT));
}

/** Today's, the last first. */
export function listSettled(): Settled[] {
  const start = startOfDay();
  return [...settled.value.values()].filter((one) => one.outcome.at >= start);
}

function startOfDay(): number {
  return new Date().setHours(0, 0, 0, 0) / 1000;
}
