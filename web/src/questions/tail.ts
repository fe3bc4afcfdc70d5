/** The last facts of a session that is not on the screen: what its agent said, and how its questions ended. */

import { api, buildUrl, sessionPath } from "../api.ts";
import type { AnyFact } from "../generated/events.ts";
import { sessions } from "../store/sessions.ts";

const TAIL = 80;

export function fetchTail(sessionId: string): Promise<AnyFact[]> {
  const last = sessions.peek().get(sessionId)?.seq ?? 0;
  const after = Math.max(0, last - TAIL);
  return api.get<AnyFact[]>(buildUrl(sessionPath(sessionId, "/events"), { follow: false, after: after || null }));
}

/** What the agent said when it made a call. */
export function findWords(facts: readonly AnyFact[], callId: string): string {
  const replies = facts.filter((fact) => fact.type === "model_replied");
  const reply = replies.findLast((fact) => fact.calls?.some((call) => call.id === callId)) ?? replies.at(-1);
  return reply?.text ?? "";
}

/** The last paragraph, cut at the start when it is long. */
export function cutWords(text: string): string {
  const last = text.trim().split(/\n\s*\n/).at(-1)?.trim() ?? "";
  return last.length > 280 ? `…${last.slice(-280)}` : last;
}
