/** A block of code with a copy button. It is highlighted once it is complete and its language is known. */

import { useEffect, useMemo, useState } from "preact/hooks";
import { CopyButton } from "../ui/copy-button.tsx";
import { groupLines, type Piece } from "./code-lines.ts";

const LONGEST = 50_000;
const KEPT = 100;
const cache = new Map<string, Piece[]>();

interface CodeProps {
  text: string;
  lang: string;
  /** It still grows, so it is not highlighted yet. */
  live?: boolean | undefined;
}

export function Code({ text, lang, live }: CodeProps) {
  const pieces = usePieces(text, live ? "" : lang);
  return (
    <div class="code">
      <pre tabIndex={0}>
        <CodeText pieces={pieces} />
      </pre>
      {!live && <CopyButton text={text} label="Copy the code" />}
    </div>
  );
}

/** Only the lines, for those who draw the frame themselves. */
export function CodeText({ pieces }: { pieces: readonly Piece[] }) {
  const groups = useMemo(() => groupLines(pieces), [pieces]);
  return (
    <code>
      {groups.map((group, at) => (
        <Group key={at} group={group} />
      ))}
    </code>
  );
}

function Group({ group }: { group: Piece[] }) {
  const id = group.map((piece) => piece.ink + piece.text).join("");
  return useMemo(
    () => <span class="ck">{group.map((piece) => (piece.ink ? <span class={piece.ink}>{piece.text}</span> : piece.text))}</span>,
    [id],
  );
}

/** The pieces of a text: plain at first, then with inks. */
export function usePieces(text: string, lang: string): Piece[] {
  const key = `${lang}\n${text}`;
  const [, redraw] = useState(0);
  const name = lang.trim().split(/[\s,{]/)[0]?.toLowerCase() ?? "";
  const isWanted = name !== "" && text.length <= LONGEST;
  useEffect(() => {
    if (!isWanted || cache.has(key)) return undefined;
    let isGone = false;
    void import("./highlight.ts").then(({ highlight }) => {
      keep(key, highlight(text, name) ?? [{ text, ink: "" }]);
      if (!isGone) redraw((count) => count + 1);
    });
    return () => void (isGone = true);
  }, [key, isWanted]);
  const known = isWanted ? cache.get(key) : undefined;
  return useMemo(() => known ?? [{ text, ink: "" }], [known, text]);
}

function keep(key: string, pieces: Piece[]): void {
  cache.set(key, pieces);
  const [oldest] = cache.keys();
  if (cache.size > KEPT && oldest !== undefined) cache.delete(oldest);
}
