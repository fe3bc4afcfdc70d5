/** What tells a person of open questions outside of the page: the title, the badge of the app, and notifications if allowed. */

import { effect, signal } from "@preact/signals";
import type { PendingQuestion } from "../generated/api.ts";
import { navigate } from "../router.ts";
import { canApprove } from "../store/me.ts";
import { areSessionsLoaded, openQuestions, sessions } from "../store/sessions.ts";
import { shareWork } from "../store/shared-stream.ts";
import { titleCount } from "../ui/title.ts";
import { buildAskId, readPending, spellOut } from "./ask.ts";

const KEY = "treadle.notify";

/** Blocked: the browser was told to show none. Impossible: it has none, or the page came without HTTPS. */
export type Notifying = "off" | "on" | "blocked" | "impossible";

export const notifying = signal<Notifying>(readNotifying());

function readNotifying(): Notifying {
  if (!("Notification" in globalThis) || !isSecureContext) return "impossible";
  if (Notification.permission === "denied") return "blocked";
  return Notification.permission === "granted" && localStorage.getItem(KEY) === "on" ? "on" : "off";
}

/** Turn notifications on or off on this device. Only a button may call it: the browser asks the person. */
export async function switchNotifications(): Promise<void> {
  if (notifying.value === "on") localStorage.removeItem(KEY);
  else if ((await Notification.requestPermission()) === "granted") localStorage.setItem(KEY, "on");
  notifying.value = readNotifying();
}

/** Start to tell of open questions. Returns a function that stops it. */
export function startNotifications(): () => void {
  let leads = false;
  const shown = new Map<string, Notification>();
  const stops = [
    // One tab of a browser notifies, that on the screen before others.
    shareWork<never>("treadle-notify", () => ((leads = true), () => (leads = false)), () => undefined),
    effect(() => showCount(openQuestions.value.length)),
    followQuestions((fresh, open) => {
      for (const [id, one] of shown) if (!open.has(id)) (one.close(), shown.delete(id));
      if (leads && notifying.peek() === "on" && canApprove.peek() && !document.hasFocus()) fresh.forEach((one) => notify(one, shown));
    }),
  ];
  return () => {
    stops.forEach((stop) => stop());
    shown.forEach((one) => one.close());
    showCount(0);
  };
}

function showCount(count: number): void {
  titleCount.value = count;
  if (!("setAppBadge" in navigator)) return;
  // A browser may refuse it, such as in a private window. The title says the same.
  (count > 0 ? navigator.setAppBadge(count) : navigator.clearAppBadge()).catch(() => undefined);
}

/** Call back with the questions that are new since the last change, and the ids of all. Those that are open at first are not new. */
export function followQuestions(take: (fresh: PendingQuestion[], open: ReadonlySet<string>) => void): () => void {
  let known: ReadonlySet<string> | null = null;
  return effect(() => {
    if (!areSessionsLoaded.value) return;
    const all = openQuestions.value;
    const open = new Set(all.map((one) => one.id));
    const fresh = known ? all.filter((one) => !known?.has(one.id)) : [];
    known = open;
    take(fresh, open);
  });
}

/** The session and the tool, and nothing of what the call would do: others may see the screen. */
function notify(question: PendingQuestion, shown: Map<string, Notification>): void {
  const ask = readPending(question);
  const name = sessions.peek().get(ask.sessionId)?.name ?? "";
  const body = ask.kind === "input" ? "Needs you: a question" : `Needs you: ${spellOut(ask.tool)}`;
  try {
    const one = new Notification(spellOut(name) || "treadle", { body, tag: ask.id });
    one.onclick = () => {
      one.close();
      window.focus();
      navigate({ page: "inbox", question: buildAskId(ask.sessionId, ask.callId) });
    };
    shown.set(question.id, one);
  } catch {
    notifying.value = "impossible"; // browsers of phones have the name, but allow it to installed apps only
  }
}
