/** The inks of the lines of a diff. Each side is highlighted as a whole, so that texts over several lines come out right. */

import { useEffect, useState } from "preact/hooks";
import type { Piece } from "../markdown/code-lines.ts";
import type { DiffRow, LineRow } from "./diff-rows.ts";

export type Inks = ReadonlyMap<LineRow, readonly Piece[]>;

const LONGEST = 60_000;
const NONE: Inks = new Map();

/** The inks of the rows: none at first, and none for a language that is not known. */
export function useInks(rows: readonly DiffRow[], path: string): Inks {
  const [inks, setInks] = useState(NONE);
  useEffect(() => {
    setInks(NONE);
    const language = /\.([A-Za-z]+)$/.exec(path)?.[1]?.toLowerCase() ?? "";
    if (!language || measure(rows) > LONGEST) return undefined;
    let isGone = false;
    void import("../markdown/highlight.ts").then(({ highlight }) => {
      const found = new Map<LineRow, Piece[]>();
      // Unchanged lines get the inks of the new side.
      for (const side of ["del", "add"] as const) {
        const lines = rows.filter((row): row is LineRow => row.kind === side || row.kind === "same");
        const pieces = highlight(lines.map((line) => line.text).join("\n"), language);
        if (pieces) addLines(found, lines, pieces);
      }
      if (!isGone && found.size > 0) setInks(found);
    });
    return () => void (isGone = true);
  }, [rows, path]);
  return inks;
}

function measure(rows: readonly DiffRow[]): number {
  return rows.reduce((sum, row) => sum + ("text" in row ? row.text.length : 0), 0);
}

function addLines(found: Map<LineRow, Piece[]>, lines: readonly LineRow[], pieces: readonly Piece[]): void {
  let index = 0;
  let line: Piece[] = [];
  const close = (): void => {
    const row = lines[index++];
    if (row) found.set(row, line);
    line = [];
  };
  for (const { text, ink } of pieces) {
    const [first = "", ...rest] = text.split("\n");
    if (first) line.push({ text: first, ink });
    for (const part of rest) {
      close();
      if (part) line.push({ text: part, ink });
    }
  }
  close();
}
