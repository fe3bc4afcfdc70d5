/** The text of one line of a diff, with the words that differ. */

import type { Mark } from "./diff-rows.ts";

interface DiffLineProps {
  text: string;
  marks: readonly Mark[];
  path: string;
}

/** A longer line is cut, so that one line cannot fill the page. */
const LONGEST = 4000;

export function DiffLine({ text, marks }: DiffLineProps) {
  const cut = text.length > LONGEST ? text.slice(0, LONGEST) : text;
  return (
    <>
      {split(cut, marks)}
      {cut !== text && <em class="m3"> … {text.length - LONGEST} more characters</em>}
    </>
  );
}

function split(text: string, marks: readonly Mark[]) {
  if (marks.length === 0) return text;
  const pieces = [];
  let done = 0;
  for (const [start, end] of marks) {
    pieces.push(text.slice(done, start), <i>{text.slice(start, end)}</i>);
    done = end;
  }
  pieces.push(text.slice(done));
  return pieces;
}
