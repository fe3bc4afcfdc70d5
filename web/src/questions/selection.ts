/** Which question is selected. Only then do the keys answer it. */

import { signal } from "@preact/signals";
import { isPhone } from "../list/phone.ts";
import type { Ask } from "./ask.ts";

/** The id of the selected question. Empty for none. */
export const selectedAsk = signal("");
/** Grows when a card has come or gone, so that another may have moved under the pointer or the thumb. */
export const moves = signal(0);
/** Shown questions by their elements, so that the focus can move on. */
const shown = new Map<HTMLElement, Ask>();
/** Goes on after an answer, where that is another question than the next one on the screen. */
let leave: ((answered: Ask) => void) | null = null;
/** The question to select when its card appears. "any" is the next one. */
let wanted = "";

/** Note that a question is on the screen. Returns a function that takes it back. */
export function noteShown(element: HTMLElement, ask: Ask): () => void {
  shown.set(element, ask);
  moves.value = moves.peek() + 1;
  if (wanted === "any" || [wanted, selectedAsk.peek()].includes(ask.id)) select(element, ask);
  return () => {
    shown.delete(element);
    moves.value = moves.peek() + 1;
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
  wanted = next ? "" : "any";
  if (next) select(...next);
  return next !== undefined;
}

function select(element: HTMLElement, ask: Ask): void {
  wanted = "";
  selectedAsk.value = ask.id;
  element.focus({ preventScroll: true });
  element.scrollIntoView({ block: "nearest" });
}

/** Decide what comes after an answer. Returns a function that takes it back. */
export function onAnswered(take: (answered: Ask) => void): () => void {
  leave = take;
  return () => {
    if (leave === take) leave = null;
  };
}

/** After an answer: go to the next question, or back to the composer, unless the person has gone elsewhere. */
export function moveOn(answered: Ask): void {
  const element = listShown().find(([, ask]) => ask.id === answered.id)?.[0];
  const { activeElement } = document;
  const isElsewhere = activeElement && activeElement !== document.body && !element?.contains(activeElement);
  selectedAsk.value = "";
  if (isElsewhere) return;
  if (leave) return leave(answered);
  const next = listShown().find(([, ask]) => ask.id !== answered.id && ask.sessionId === answered.sessionId);
  if (next) select(...next);
  else if (!isPhone.peek()) focusComposer(); // a phone would open its keyboard
}

/** Select a question. Its card gets the focus. */
export function selectAsk(id: string): void {
  const found = listShown().find(([, ask]) => ask.id === id);
  if (found) select(...found);
  else selectWhenShown(id);
}

/** Select a question when its next card appears. */
export function selectWhenShown(id: string): void {
  wanted = id;
}

export function focusComposer(): void {
  document.querySelector<HTMLElement>("[data-composer]")?.focus();
}
