/** What a person has written but not sent, by session. The text survives a reload, what is attached does not. */

import { signal, type Signal } from "@preact/signals";
import type { Attachment } from "../generated/api.ts";

export interface Draft {
  text: string;
  attachments: Attachment[];
}

const KEY = "treadle.draft.";
const EMPTY: Draft = { text: "", attachments: [] };
const drafts = new Map<string, Signal<Draft>>();

export function draftOf(sessionId: string): Signal<Draft> {
  let draft = drafts.get(sessionId);
  if (!draft) {
    draft = signal({ ...EMPTY, text: readText(sessionId) });
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

function readText(sessionId: string): string {
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
