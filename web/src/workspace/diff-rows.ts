/** The rows of a diff: lines with their numbers, the words that differ, and gaps where nothing changed. */

import { compare, type Edit } from "./line-diff.ts";

/** A part of a line from `start` to `end`. */
export type Mark = readonly [start: number, end: number];

export interface LineRow {
  kind: "same" | "add" | "del";
  /** Line numbers. 0 where the side has no such line. */
  left: number;
  right: number;
  text: string;
  /** The words that differ from the line on the other side. */
  marks: readonly Mark[];
}

export interface GapRow {
  kind: "gap";
  /** Unchanged lines, by their number on the right. `last` is 0 when the end is not known. */
  first: number;
  last: number;
  /** The lines, if the whole file is known. Otherwise the gap cannot be unfolded. */
  rows: readonly LineRow[] | null;
}

export interface NoteRow {
  kind: "note";
  text: string;
}

export type DiffRow = LineRow | GapRow | NoteRow;

export interface DiffCount {
  added: number;
  removed: number;
}

const CONTEXT = 3;
/** A longer line, or one with more words, gets no marks. */
const LONGEST_LINE = 1000;
const MOST_PAIRS = 2000;
/** Lines that share less than this have nothing in common that marks could show. */
const LEAST_SHARED = 0.4;

export function splitLines(text: string): string[] {
  const lines = text.split("\n");
  if (lines.at(-1) === "") lines.pop();
  return lines;
}

/** The rows from one text to another. Without a change there are none. */
export function buildRows(before: string, after: string): DiffRow[] {
  const a = splitLines(before);
  const b = splitLines(after);
  const edits = compare(a, b);
  if (edits.length === 0) return [];
  const rows: DiffRow[] = [];
  let left = 0;
  let right = 0;
  for (const edit of edits) {
    addSame(rows, b, { left, right, count: edit.left - left, isFirst: left === 0 && right === 0, isLast: false });
    rows.push(...buildChange(a, b, edit));
    left = edit.left + edit.removed;
    right = edit.right + edit.added;
  }
  addSame(rows, b, { left, right, count: b.length - right, isFirst: false, isLast: true });
  markWords(rows);
  return rows;
}

interface SameLines {
  left: number;
  right: number;
  count: number;
  isFirst: boolean;
  isLast: boolean;
}

function addSame(rows: DiffRow[], b: readonly string[], { left, right, count, isFirst, isLast }: SameLines): void {
  const same = Array.from({ length: count }, (_, index): LineRow => ({
    kind: "same", left: left + index + 1, right: right + index + 1, text: b[right + index] ?? "", marks: [],
  }));
  const head = isFirst ? 0 : CONTEXT;
  const tail = isLast ? 0 : CONTEXT;
  // A gap of one line takes as much room as the line.
  if (count <= head + tail + 1) return void rows.push(...same);
  const hidden = same.slice(head, count - tail);
  rows.push(...same.slice(0, head));
  rows.push({ kind: "gap", first: right + head + 1, last: right + count - tail, rows: hidden });
  rows.push(...same.slice(count - tail));
}

function buildChange(a: readonly string[], b: readonly string[], edit: Edit): LineRow[] {
  const removed = a.slice(edit.left, edit.left + edit.removed);
  const added = b.slice(edit.right, edit.right + edit.added);
  return [
    ...removed.map((text, index): LineRow => ({ kind: "del", left: edit.left + index + 1, right: 0, text, marks: [] })),
    ...added.map((text, index): LineRow => ({ kind: "add", left: 0, right: edit.right + index + 1, text, marks: [] })),
  ];
}

const SIGNS = [" ", "+", "-"];
const HUNK = /^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@ ?(.*)$/;

/** The rows of a unified diff of one or more files. What is not understood is shown as it is. */
export function parseUnified(text: string): DiffRow[] {
  const rows: DiffRow[] = [];
  let left = 0;
  let right = 0;
  let lastRight = 0;
  let open = { left: 0, right: 0 };
  for (const line of splitLines(text)) {
    const hunk = HUNK.exec(line);
    if (hunk && open.left <= 0 && open.right <= 0) {
      [left, right] = [Number(hunk[1]), Number(hunk[3])];
      open = { left: Number(hunk[2] ?? 1), right: Number(hunk[4] ?? 1) };
      if (right - 1 > lastRight) rows.push({ kind: "gap", first: lastRight + 1, last: right - 1, rows: null });
    } else if (line.startsWith("\\ ")) {
      rows.push({ kind: "note", text: line.slice(2) });
    } else if ((open.left > 0 || open.right > 0) && SIGNS.includes(line[0] ?? " ")) {
      const sign = line[0] ?? " ";
      if (sign !== "+") open.left--;
      if (sign !== "-") open.right--;
      rows.push(readLine(sign, line.slice(1), left, right));
      if (sign !== "+") left++;
      if (sign !== "-") lastRight = right++;
    } else if (line.startsWith("--- ") || line.startsWith("+++ ")) {
      lastRight = 0;
    } else {
      open = { left: 0, right: 0 };
      rows.push({ kind: "note", text: line });
    }
  }
  markWords(rows);
  return rows;
}

function readLine(sign: string, text: string, left: number, right: number): LineRow {
  if (sign === "+") return { kind: "add", left: 0, right, text, marks: [] };
  if (sign === "-") return { kind: "del", left, right: 0, text, marks: [] };
  return { kind: "same", left, right, text, marks: [] };
}

export function countLines(rows: readonly DiffRow[]): DiffCount {
  let added = 0;
  let removed = 0;
  for (const row of rows) {
    if (row.kind === "add") added++;
    else if (row.kind === "del") removed++;
  }
  return { added, removed };
}

/** The numbers of a unified diff, without its rows. */
export function countUnified(text: string): DiffCount {
  return countLines(parseUnified(text));
}

/** In each block, the first removed line belongs to the first added one, and so on. */
function markWords(rows: DiffRow[]): void {
  let pairs = 0;
  for (let index = 0; index < rows.length; ) {
    if (rows[index]?.kind !== "del") {
      index++;
      continue;
    }
    let added = index;
    while (rows[added]?.kind === "del") added++;
    for (let offset = 0; index + offset < added && pairs < MOST_PAIRS; offset++, pairs++) {
      const del = rows[index + offset];
      const add = rows[added + offset];
      if (del?.kind !== "del" || add?.kind !== "add") break;
      [del.marks, add.marks] = compareWords(del.text, add.text);
    }
    index = added;
  }
}

const WORDS = /[\p{L}\p{N}_]+|\s+|[^\p{L}\p{N}_\s]/gu;

/** Where two lines differ, word by word. Nothing when they are equal, too long, or have too little in common. */
export function compareWords(before: string, after: string): [Mark[], Mark[]] {
  if (before.length > LONGEST_LINE || after.length > LONGEST_LINE) return [[], []];
  const a = before.match(WORDS) ?? [];
  const b = after.match(WORDS) ?? [];
  const edits = compare(a, b);
  const [left, right] = [measureWords(a), measureWords(b)];
  const old = edits.map((edit): Mark => [left[edit.left] ?? 0, left[edit.left + edit.removed] ?? 0]);
  const now = edits.map((edit): Mark => [right[edit.right] ?? 0, right[edit.right + edit.added] ?? 0]);
  const changed = [...old, ...now].reduce((sum, [start, end]) => sum + end - start, 0);
  const size = before.trim().length + after.trim().length;
  if (size === 0 || changed > size * (1 - LEAST_SHARED)) return [[], []];
  return [joinMarks(before, old), joinMarks(after, now)];
}

/** Where each word starts, and where the last one ends. */
function measureWords(words: readonly string[]): number[] {
  const starts = [0];
  for (const word of words) starts.push((starts.at(-1) ?? 0) + word.length);
  return starts;
}

/** Marks with only one or two characters between them are easier to read as one. */
function joinMarks(text: string, marks: readonly Mark[]): Mark[] {
  const joined: Mark[] = [];
  for (const [start, end] of marks) {
    if (start === end) continue;
    const last = joined.at(-1);
    if (last && start - last[1] <= 2 && text.slice(last[1], start).trim() !== "") joined[joined.length - 1] = [last[0], end];
    else joined.push([start, end]);
  }
  return joined;
}
