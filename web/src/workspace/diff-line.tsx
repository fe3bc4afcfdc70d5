/** The text of one line of a diff: the words that differ, the inks of code, and hidden characters spelled out. */

import type { VNode } from "preact";
import type { Piece } from "../markdown/code-lines.ts";
import { VisibleText } from "../ui/visible-text.tsx";
import type { Mark } from "./diff-rows.ts";

interface DiffLineProps {
  text: string;
  marks: readonly Mark[];
  /** The same text in pieces with inks, once it is highlighted. */
  pieces: readonly Piece[] | undefined;
}

/** A longer line is cut, so that one line cannot fill the page. */
const LONGEST = 4000;

export function DiffLine({ text, marks, pieces }: DiffLineProps) {
  if (text.length > LONGEST) {
    return (
      <>
        <VisibleText text={text.slice(0, LONGEST)} />
        <em class="m3"> … {text.length - LONGEST} more characters</em>
      </>
    );
  }
  if (marks.length === 0) return <Inks pieces={pieces ?? [{ text, ink: "" }]} />;
  return <>{markPieces(pieces ?? [{ text, ink: "" }], marks)}</>;
}

function Inks({ pieces }: { pieces: readonly Piece[] }) {
  return (
    <>
      {pieces.map((piece) => {
        const text = <VisibleText text={piece.text} />;
        return piece.ink ? <span class={piece.ink}>{text}</span> : text;
      })}
    </>
  );
}

function markPieces(pieces: readonly Piece[], marks: readonly Mark[]): VNode[] {
  const drawn: VNode[] = [];
  let done = 0;
  for (const [start, end] of marks) {
    drawn.push(<Inks pieces={cut(pieces, done, start)} />);
    drawn.push(
      <i>
        <Inks pieces={cut(pieces, start, end)} />
      </i>,
    );
    done = end;
  }
  drawn.push(<Inks pieces={cut(pieces, done, Infinity)} />);
  return drawn;
}

/** The pieces between two places of the line. */
function cut(pieces: readonly Piece[], start: number, end: number): Piece[] {
  const found: Piece[] = [];
  let place = 0;
  for (const { text, ink } of pieces) {
    const part = text.slice(Math.max(0, start - place), Math.max(0, end - place));
    if (part) found.push({ text: part, ink });
    place += text.length;
  }
  return found;
}
