/** Which question is selected. Only then do the keys answer it. */

import { signal } from "@preact/signals";
import type { Ask } from "./ask.ts";

/** The id of the selected question. Empty for none. */
export const selectedAsk = signal("");
/** Shown questions by their elements, so that the focus can move on. */
const shown = new Map<HTMLElement, Ask>();

/** Note that a question is on the screen. Returns a function that takes it back. */
export function noteShown(element: HTMLElement, ask: Ask): () => void {
  shown.set(element, ask);
  return () => {
    shown.delete(element);
    if (selectedAsk.peek() === ask.id && !listShown().some(([, one]) => one.id === ask.id)) selectedAsk.value = "";
  };
}

function listShown(): [HTMLElement, Ask][] {
  const isBefore = (one: HTMLElement, other: HTMLElement) => one.compareDocumentPosition(other) & Node.DOCUMENT_POSITION_FOLLOWING;
  return [...shown].sort(([one], [other]) => (isBefore(one, other) ? -1 : 1));
}

/** Select the question after the selected one, and put the focus on it. Returns false when there is none. */
export function selectNextShown(): boolean {
  const all = listShown();
  const place = all.findIndex(([, ask]) => ask.id === selectedAsk.peek());
  const next = all[(place + 1) % all.length];
  if (!next) return false;
  selectedAsk.value = next[1].id;
  next[0].focus({ preventScroll: true });
  next[0].scrollIntoView({ block: "nearest" });
  return true;
}

/** After an answer: go to the next question, or back to the composer, unless the person has gone elsewhere. */
export function moveOn(answered: Ask): void {
  const element = listShown().find(([, ask]) => ask.id === answered.id)?.[0];
  const { activeElement } = document;
  const isElsewhere = activeElement && activeElement !== document.body && !element?.contains(activeElement);
  selectedAsk.value = "";
  if (isElsewhere) return;
  const next = listShown().find(([, ask]) => ask.id !== answered.id && ask.sessionId === answered.sessionId);
  if (next) {
    selectedAsk.value = next[1].id;
    next[0].focus();
  } else focusComposer();
}

export function focusComposer(): void {
  document.querySelector<HTMLElement>("[data-composer]")?.focus();
}
