/** A diff side by side: what was there on the left, what is there on the right. */

import { useMemo } from "preact/hooks";
import type { Inks } from "./diff-inks.ts";
import { DiffLine } from "./diff-line.tsx";
import { DiffGap } from "./diff-gap.tsx";
import type { DiffRow, GapRow, LineRow, NoteRow } from "./diff-rows.ts";

type Pair = { left: LineRow | null; right: LineRow | null };

interface SplitTableProps {
  rows: readonly DiffRow[];
  inks: Inks;
  label: string;
  onUnfold: (gap: GapRow) => void;
}

export function SplitTable({ rows, inks, label, onUnfold }: SplitTableProps) {
  const pairs = useMemo(() => pairRows(rows), [rows]);
  return (
    <table class="split" aria-label={label}>
      <colgroup>
        <col class="ln" />
        <col class="sg" />
        <col />
        <col class="ln" />
        <col class="sg" />
        <col />
      </colgroup>
      <tbody>
        {pairs.map((pair, index) =>
          "kind" in pair ? (
            <DiffGap key={index} row={pair} columns={6} onUnfold={onUnfold} />
          ) : (
            <tr key={index}>
              <Side row={pair.left} number={pair.left?.left ?? 0} inks={inks} />
              <Side row={pair.right} number={pair.right?.right ?? 0} inks={inks} />
            </tr>
          ),
        )}
      </tbody>
    </table>
  );
}

function Side({ row, number, inks }: { row: LineRow | null; number: number; inks: Inks }) {
  const kind = row ? row.kind : "none";
  return (
    <>
      <td class={`ln ${kind}`}>{number || ""}</td>
      <td class={`sg ${kind}`}>{kind === "add" ? "+" : kind === "del" ? "−" : ""}</td>
      <td class={`tx ${kind}`}>{row && <DiffLine text={row.text} marks={row.marks} pieces={inks.get(row)} />}</td>
    </>
  );
}

/** Removed lines stand beside the added lines that replace them. */
function pairRows(rows: readonly DiffRow[]): (Pair | GapRow | NoteRow)[] {
  const pairs: (Pair | GapRow | NoteRow)[] = [];
  /** The removed lines of the block, and how many of them have a line beside them. */
  let removed: Pair[] = [];
  let taken = 0;
  for (const row of rows) {
    if (row.kind === "add") {
      const beside = removed[taken++];
      if (beside) beside.right = row;
      else pairs.push({ left: null, right: row });
      continue;
    }
    if (row.kind !== "del" || taken > 0) [removed, taken] = [[], 0];
    if (row.kind === "gap" || row.kind === "note") pairs.push(row);
    else if (row.kind === "same") pairs.push({ left: row, right: row });
    else {
      const pair: Pair = { left: row, right: null };
      removed.push(pair);
      pairs.push(pair);
    }
  }
  return pairs;
}
