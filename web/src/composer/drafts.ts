/** What a person has written but not sent, by session. The text survives a reload, what is attached does not. */

import { signal, type Signal } from "@preact/signals";
import { readText } from "../fold-state.ts";
import type { Attachment } from "../generated/api.ts";
import type { Part } from "../generated/events.ts";
import { isOwnText, listAttachments } from "./message-parts.ts";

export interface Draft {
  text: string;
  attachments: Attachment[];
}

const KEY = "treadle.draft.";
/** The draft of the first message of a new session. */
export const NEW = "new";
const EMPTY: Draft = { text: "", attachments: [] };
const drafts = new Map<string, Signal<Draft>>();

export function draftOf(sessionId: string): Signal<Draft> {
  let draft = drafts.get(sessionId);
  if (!draft) {
    draft = signal({ ...EMPTY, text: readKept(sessionId) });
    drafts.set(sessionId, draft);
  }
  return draft;
}

export function changeDraft(sessionId: string, change: Partial<Draft>): void {
  const draft = draftOf(sessionId);
  draft.value = { ...draft.value, ...change };
  if (change.text !== undefined) keepText(sessionId, change.text);
}

export function clearDraft(sessionId: string): void {
  changeDraft(sessionId, EMPTY);
}

export function forgetDrafts(): void {
  drafts.clear();
  for (const key of Object.keys(localStorage)) if (key.startsWith(KEY)) localStorage.removeItem(key);
}

/** Put a message of the person back into the field, to be changed and sent again. */
export function takeBack(sessionId: string, parts: readonly Part[]): void {
  changeDraft(sessionId, { text: readText(parts.filter(isOwnText)), attachments: listAttachments(parts) });
}

function readKept(sessionId: string): string {
  try {
    return localStorage.getItem(KEY + sessionId) ?? "";
  } catch {
    return "";
  }
}

function keepText(sessionId: string, text: string): void {
  try {
    if (text) localStorage.setItem(KEY + sessionId, text);
    else localStorage.removeItem(KEY + sessionId);
  } catch {
    // The text stays as long as the page.
  }
}
