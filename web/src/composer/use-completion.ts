/** Follows the word at the caret of a message field, and offers what completes it. */

import { useEffect, useRef, useState, type MutableRef } from "preact/hooks";
import { complete, filterCommands, findWord, MOST_FILES, suggestFile, type Suggestion, type Word } from "./completion.ts";

/** Where suggestions come from. A part that is missing offers nothing. */
export interface SuggestionSource {
  findFiles?: (typed: string) => Promise<string[]>;
  /** The commands that are known now. */
  listCommands?: () => Suggestion[];
  /** Learn of further commands. At the start of a word they are read again. */
  loadCommands?: (isStart: boolean) => Promise<void>;
}

export interface Completion {
  suggestions: Suggestion[];
  active: number;
  choose: (at: number) => void;
  /** Look at the caret again. */
  update: () => void;
  /** Returns whether the key was used. */
  onKeyDown: (event: KeyboardEvent) => boolean;
  hide: () => void;
}

interface Offer {
  word: Word;
  suggestions: Suggestion[];
}

export function useCompletion(
  field: MutableRef<HTMLTextAreaElement | null>,
  source: SuggestionSource,
  text: string,
  write: (text: string) => void,
): Completion {
  const [offer, setOffer] = useState<Offer | null>(null);
  const [active, setActive] = useState(0);
  /** Grows with every question, so that a late answer is not shown. */
  const asked = useRef(0);
  /** Where the word begins that the person wants no suggestions for. */
  const closed = useRef(-1);
  const hide = (): void => {
    asked.current++;
    setOffer(null);
  };
  useEffect(() => hide, []);
  // A message that was sent has nothing to complete.
  useEffect(() => (text === "" ? hide() : undefined), [text === ""]);
  const show = (word: Word, suggestions: Suggestion[]): void => {
    setActive(0);
    setOffer(suggestions.length > 0 ? { word, suggestions } : null);
  };
  const update = async (): Promise<void> => {
    const element = field.current;
    const word = element && element.selectionStart === element.selectionEnd ? findWord(element.value, element.selectionStart) : null;
    if (word?.start !== closed.current) closed.current = -1;
    if (!word || closed.current >= 0) return hide();
    const question = ++asked.current;
    if (word.kind === "file") {
      const paths = await source.findFiles?.(word.typed).catch(() => []);
      if (question === asked.current) show(word, (paths ?? []).slice(0, MOST_FILES).map(suggestFile));
      return;
    }
    // What is known is offered at once, so that Enter never sends half of a command.
    const list = (): Suggestion[] => filterCommands(source.listCommands?.() ?? [], word.typed);
    const known = list();
    show(word, known);
    await source.loadCommands?.(word.typed === "");
    if (question === asked.current && list().length !== known.length) show(word, list());
  };
  const close = (): void => {
    closed.current = offer?.word.start ?? -1;
    hide();
  };
  const choose = (at: number): void => {
    const chosen = offer?.suggestions[at];
    const element = field.current;
    if (!chosen || !offer || !element) return;
    hide();
    if (chosen.run) {
      write("");
      chosen.run();
      return;
    }
    const completed = complete(element.value, findWord(element.value, element.selectionStart) ?? offer.word, chosen);
    // At once, so that the next letter stands behind it.
    element.value = completed.text;
    element.setSelectionRange(completed.caret, completed.caret);
    write(completed.text);
    void update();
  };
  const suggestions = offer?.suggestions ?? [];
  const onKeyDown = (event: KeyboardEvent): boolean => {
    if (suggestions.length === 0) return false;
    const step = event.key === "ArrowDown" ? 1 : event.key === "ArrowUp" ? -1 : 0;
    const isPlain = !event.shiftKey && !event.altKey && !event.ctrlKey && !event.metaKey;
    if (step !== 0 && isPlain) setActive((active + step + suggestions.length) % suggestions.length);
    else if ((event.key === "Enter" || event.key === "Tab") && isPlain) {
      if (event.key === "Enter" && isWritten(offer, active)) return (hide(), false);
      choose(active);
    } else if (event.key === "Escape") close();
    else return false;
    return true;
  };
  return { suggestions, active, choose, update: () => void update(), onKeyDown, hide };
}

/** A command of which the whole name stands there already is sent by Enter. */
function isWritten(offer: Offer | null, at: number): boolean {
  const chosen = offer?.suggestions[at];
  return offer?.word.kind === "command" && !chosen?.run && chosen?.key === offer.word.typed;
}
