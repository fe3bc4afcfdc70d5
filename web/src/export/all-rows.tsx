/**
 * A list that draws every row, so that the browser can find text in all of them and print them. The build of the export
 * puts this module in the place of `session/virtual-rows.tsx`.
 */

import { useEffect, useState } from "preact/hooks";
import type { VirtualRowsProps } from "../session/virtual-rows.tsx";

/** How many rows are drawn before the browser may show them. */
const STEP = 150;

export function VirtualRows({ rows, draw, tail }: VirtualRowsProps) {
  const [count, setCount] = useState(STEP);
  const isWhole = count >= rows.length;
  useEffect(() => {
    if (isWhole) return undefined;
    const timer = setTimeout(() => setCount(count + STEP));
    return () => clearTimeout(timer);
  }, [count, isWhole]);
  return (
    <div class="col" role="log" aria-live="off" aria-label="Conversation" aria-busy={!isWhole}>
      {rows.slice(0, count).map((row, at) => (
        <div key={row.key} class="vr" data-seq={row.seq}>
          {draw(row, rows[at - 1])}
        </div>
      ))}
      {isWhole && tail}
    </div>
  );
}

/** Scroll to what was said or done at a position. */
export function showPosition(seq: number): void {
  const rows = [...document.querySelectorAll<HTMLElement>(".vr[data-seq]")];
  const row = rows.findLast((one) => Number(one.dataset.seq) <= seq) ?? rows[0];
  row?.scrollIntoView({ block: "start" });
}
