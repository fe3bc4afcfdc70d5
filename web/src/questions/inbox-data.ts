/** What the inbox shows: the open questions and today's answers, of all sessions or of one. */

import { signal } from "@preact/signals";
import { useEffect, useState } from "preact/hooks";
import { api, sessionPath } from "../api.ts";
import type { PendingQuestion, SessionDetail, SessionView } from "../generated/api.ts";
import { isHelper, nameSession } from "../list/session-status.ts";
import { openQuestions, putSession, sessions } from "../store/sessions.ts";
import { sendings } from "./answers.ts";
import { readPending, type Ask } from "./ask.ts";
import { moves } from "./selection.ts";
import { listSettled, type Settled } from "./settled.ts";
import { cutWords, fetchTail, findWords } from "./tail.ts";

/** The session whose questions are shown. Empty for all. */
export const shownSession = signal("");

export function listOpen(): Ask[] {
  const wanted = shownSession.value;
  const all = openQuestions.value.filter((one) => !wanted || belongsTo(one, wanted)).map(readPending);
  // What this page has answered is gone for the reader, before the stream says so.
  return all.filter((one) => sendings.value.get(one.id)?.state !== "sent");
}

export function listAnswered(): Settled[] {
  const wanted = shownSession.value;
  return listSettled().filter(({ ask }) => !wanted || ask.sessionId === wanted || sessions.value.get(ask.sessionId)?.parent === wanted);
}

/** The questions of helpers belong to the session that started them too. */
function belongsTo(question: PendingQuestion, wanted: string): boolean {
  return question.session_id === wanted || sessions.value.get(question.session_id)?.parent === wanted;
}

/** The session of a question, and for a helper the session that started it. */
export interface Owner {
  session: SessionView | undefined;
  name: string;
  parent: SessionView | undefined;
  parentName: string;
}

export function findOwner(sessionId: string): Owner {
  const session = sessions.value.get(sessionId);
  const parent = session?.parent && isHelper(session) ? sessions.value.get(session.parent) : undefined;
  return { session, name: session ? nameSession(session) : "A session", parent, parentName: parent ? nameSession(parent) : "" };
}

/** "Parent › helper", or the name of the session. */
export function printOwner({ name, parentName }: Owner): string {
  return parentName ? `${parentName} › ${name}` : name;
}

const requested = new Set<string>();

/** Load the sessions of questions that are not in the list yet, such as old ones. */
export function useOwners(asks: readonly Ask[]): void {
  const wanted = asks.flatMap(({ sessionId }) => [sessionId, sessions.value.get(sessionId)?.parent ?? ""]);
  const missing = [...new Set(wanted)].filter((id) => id && !sessions.value.has(id) && !requested.has(id)).join(" ");
  useEffect(() => {
    for (const id of missing.split(" ").filter(Boolean)) {
      requested.add(id);
      api.get<SessionDetail>(sessionPath(id)).then(putSession, () => requested.delete(id));
    }
  }, [missing]);
}

const words = new Map<string, string>();

/** What the agent said before it asked. Empty until it is known. */
export function useWords(ask: Ask): string {
  const [, redraw] = useState(0);
  useEffect(() => {
    if (words.has(ask.id)) return;
    let isGone = false;
    const take = (text: string): void => {
      words.set(ask.id, text);
      if (isGone || !text) return;
      moves.value = moves.peek() + 1; // the words push the question down
      redraw((count) => count + 1);
    };
    fetchTail(ask.sessionId).then((facts) => take(cutWords(findWords(facts, ask.callId))), () => undefined);
    return () => {
      isGone = true;
    };
  }, [ask.id]);
  return words.get(ask.id) ?? "";
}
