/** Pieces of code in lines, and lines in groups: the browser lays out only the groups that changed. */

/** A class of session.css. Empty means the colour of text. */
export type Ink = "" | "k" | "s" | "num" | "cm";

export interface Piece {
  text: string;
  ink: Ink;
}

const GROUP = 64;

/** Groups of lines. The last line break of a group is left out, because groups are blocks. */
export function groupLines(pieces: readonly Piece[]): Piece[][] {
  const groups: Piece[][] = [[]];
  let lines = 0;
  for (const piece of pieces) {
    let start = 0;
    for (let end = piece.text.indexOf("\n"); end >= 0; end = piece.text.indexOf("\n", end + 1)) {
      lines++;
      if (lines % GROUP > 0) continue;
      groups.at(-1)?.push({ text: piece.text.slice(start, end), ink: piece.ink });
      groups.push([]);
      start = end + 1;
    }
    if (start < piece.text.length) groups.at(-1)?.push({ text: piece.text.slice(start), ink: piece.ink });
  }
  return groups;
}
