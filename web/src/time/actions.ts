/** What a person does with the past: move to a position, fork there, rewind to it, and take that back. */

import { signal } from "@preact/signals";
import { api, sessionPath } from "../api.ts";
import type { RewindBody, RewindView, RunAccepted, SessionView } from "../generated/api.ts";
import type { AnyFact, Rewound } from "../generated/events.ts";
import { navigate, openSession, route, type SessionTab } from "../router.ts";
import type { OpenSession } from "../store/open-session.ts";
import { putSession } from "../store/sessions.ts";
import type { View } from "../view.ts";
import { attempt, showToast } from "../ui/toasts.tsx";

export type RewindTarget = NonNullable<RewindBody["what"]>;

export const BUSY_SENTENCE = "Rewind works when the run has ended. Fork works now.";

export interface RewindRequest {
  session: OpenSession;
  seq: number;
  what: RewindTarget;
}

/** The open rewind dialog. */
export const rewindRequest = signal<RewindRequest | null>(null);

export function openRewind(session: OpenSession, seq: number, what: RewindTarget = "both"): void {
  rewindRequest.value = { session, seq, what };
}

/** The server refuses to rewind then. */
export function isBusy(view: View): boolean {
  return view.run !== null || (view.queue.length > 0 && !view.isHeld);
}

/** Move to a position of the session on the screen; null is now. Only the first step can be gone back from. */
export function moveTo(at: number | null): void {
  const to = route.value;
  if (to.page === "session" && to.at !== at) navigate({ ...to, at }, { replace: to.at !== null });
}

export function showTab(tab: SessionTab): void {
  const to = route.value;
  if (to.page === "session") navigate({ ...to, tab });
}

/** Move from where the page is, by a step that counts the end of the line as now. */
export function clampPosition(seq: number, total: number): number | null {
  return seq >= total ? null : Math.max(1, seq);
}

export async function forkAt(session: OpenSession, seq: number | null): Promise<void> {
  await attempt(async () => {
    const fork = await api.post<SessionView>(sessionPath(session.id, "/fork"), { after: seq });
    putSession(fork);
    openSession(fork.id);
    showToast(seq === null ? "Forked." : `Forked at fact ${seq}.`);
  });
}

export function previewRewind(session: OpenSession, body: RewindBody): Promise<RewindView> {
  return api.post<RewindView>(sessionPath(session.id, "/rewind"), { ...body, dry_run: true });
}

/** Takes the toast away that offers to take the last rewind back. */
let dropOffer = (): void => undefined;

/** Say what was rewound, and offer to take it back. Only the last one can be, and only once: twice would restore it. */
export function offerUndo(session: OpenSession, text: string): void {
  dropOffer();
  dropOffer = showToast(text, { undo: () => void undoRewind(session) });
}

/** Rewind for real. The toast offers to take it back. */
export async function rewind(session: OpenSession, body: RewindBody): Promise<boolean> {
  return attempt(async () => {
    const done = await api.post<RewindView>(sessionPath(session.id, "/rewind"), body);
    moveTo(null);
    const left = done.skipped.length > 0 ? ` ${done.skipped.length} left alone.` : "";
    offerUndo(session, `Rewound to fact ${done.to}.${left}`);
  });
}

/** The rewind that nothing but notes has followed. A later one would take back what was done since. */
export function findLastRewind(facts: readonly AnyFact[]): Rewound | null {
  const last = facts.findLast((fact) => !PASSED.has(fact.type));
  // What took a rewind back is a rewind too.
  return last?.type === "rewound" && facts[last.to]?.type !== "rewound" ? last : null;
}

const PASSED = new Set<AnyFact["type"]>(["custom", "session_renamed", "session_marked"]);

/** Take the last rewind back. Twice restores it. */
export async function undoRewind(session: OpenSession): Promise<boolean> {
  return attempt(async () => {
    await api.post<RewindView>(sessionPath(session.id, "/rewind/undo"), {});
    dropOffer();
    showToast("The rewind was taken back.");
  });
}

/** Let the model answer the last message again. */
export async function regenerate(session: OpenSession): Promise<boolean> {
  return attempt(() => api.post<RunAccepted>(sessionPath(session.id, "/regenerate"), {}));
}

/** Go on from a checkpoint, here or in a fork. */
export async function resumeFrom(session: OpenSession, seq: number, options: { fork: boolean }): Promise<void> {
  await attempt(async () => {
    const started = await api.post<RunAccepted>(sessionPath(session.id, "/resume"), { after: seq, fork: options.fork });
    openSession(started.session_id);
  });
}
