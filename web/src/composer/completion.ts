/** What a message field offers to complete: a file of the workspace after `@`, and a command after `/`. */

import { filterMatches } from "../palette/fuzzy.ts";
import type { IconName } from "../ui/icon.tsx";

export interface Suggestion {
  key: string;
  icon: IconName;
  label: string;
  hint: string;
  /** What replaces the word. */
  text: string;
  /** A folder: its files are offered next. */
  isOpen?: boolean;
  /** What it does at once, instead of completing. */
  run?: () => void;
}

export interface Word {
  kind: "file" | "command";
  /** What was typed after the mark. */
  typed: string;
  /** Where the word begins and ends in the text. */
  start: number;
  end: number;
}

const MENTION = /(?:^|\s)@(?:"([^"\n]*)|([^\s"]*))$/;
const COMMAND = /^\/([a-z0-9_-]*)$/;
export const MOST_FILES = 8;

/** The word at the caret that can be completed. */
export function findWord(text: string, caret: number): Word | null {
  const before = text.slice(0, caret);
  const command = COMMAND.exec(before);
  if (command) return { kind: "command", typed: command[1] ?? "", start: 0, end: caret };
  const mention = MENTION.exec(before);
  if (!mention) return null;
  const start = mention.index + mention[0].indexOf("@");
  return { kind: "file", typed: mention[1] ?? mention[2] ?? "", start, end: caret };
}

export function suggestFile(path: string): Suggestion {
  const isOpen = path.endsWith("/");
  const text = /\s/.test(path) ? `@"${path}${isOpen ? "" : '"'}` : `@${path}`;
  const cut = path.replace(/\/$/, "").lastIndexOf("/") + 1;
  return { key: path, icon: isOpen ? "box" : "file", label: path.slice(cut), hint: path.slice(0, cut), text, isOpen };
}

export function filterCommands(all: readonly Suggestion[], typed: string): Suggestion[] {
  const starting = all.filter((one) => one.key.startsWith(typed));
  const others = filterMatches(all, typed, (one) => one.key).filter((one) => !starting.includes(one));
  return [...starting, ...others];
}

/** The text with the word completed, and where the caret is then. A folder stays open, so that its files follow. */
export function complete(text: string, word: Word, suggestion: Suggestion): { text: string; caret: number } {
  const rest = text.slice(word.end);
  const space = suggestion.isOpen || /^\s/.test(rest) ? "" : " ";
  const caret = word.start + suggestion.text.length + (suggestion.isOpen ? 0 : 1);
  return { text: text.slice(0, word.start) + suggestion.text + space + rest, caret };
}
