/** A diff as rows: numbers, a sign, and the line with the words that differ. Signs carry the meaning, colour repeats it. */

import { useMemo, useState } from "preact/hooks";
import { plural } from "../ui/format.ts";
import { buildRows, parseUnified, type DiffCount, type DiffRow, type GapRow, type LineRow } from "./diff-rows.ts";
import { useInks, type Inks } from "./diff-inks.ts";
import { DiffGap } from "./diff-gap.tsx";
import { DiffLine } from "./diff-line.tsx";
import { SplitTable } from "./diff-split.tsx";

/** So many rows are drawn at first, and so many more each time. */
const FIRST_ROWS = 300;
const MORE_ROWS = 1000;

interface DiffProps {
  before: string;
  after: string;
  path: string;
}

/** The difference of two texts. Every gap can be unfolded. */
export function Diff({ before, after, path }: DiffProps) {
  const rows = useMemo(() => buildRows(before, after), [before, after]);
  return <DiffTable key={path} rows={rows} path={path} />;
}

interface UnifiedDiffProps {
  text: string;
  path?: string;
  /** Both sides beside each other. */
  isSplit?: boolean;
}

/** A unified diff, as the server and tools write it. */
export function UnifiedDiff({ text, path = "", isSplit = false }: UnifiedDiffProps) {
  const rows = useMemo(() => parseUnified(text), [text]);
  return <DiffTable key={path} rows={rows} path={path} isSplit={isSplit} />;
}

/** The numbers of added and removed lines. */
export function DiffNumbers({ added, removed }: DiffCount) {
  return (
    <span class="pm">
      {added > 0 && <span class="plus">+{added}</span>}
      {added > 0 && removed > 0 && " "}
      {removed > 0 && <span class="minus">−{removed}</span>}
    </span>
  );
}

interface DiffTableProps {
  rows: readonly DiffRow[];
  path: string;
  isSplit?: boolean;
}

function DiffTable({ rows, path, isSplit = false }: DiffTableProps) {
  const [unfolded, setUnfolded] = useState<ReadonlySet<number>>(new Set());
  const [most, setMost] = useState(FIRST_ROWS);
  const shown = useMemo(() => unfoldGaps(rows, unfolded), [rows, unfolded]);
  const digits = useMemo(() => countDigits(rows), [rows]);
  const drawn = useMemo(() => shown.slice(0, most), [shown, most]);
  const inks = useInks(drawn, path);
  const label = path ? `Changes of ${path}` : "Changes";
  const unfold = (gap: GapRow): void => setUnfolded(new Set(unfolded).add(gap.first));
  if (rows.length === 0) return <p class="diff-none">Nothing differs.</p>;
  const left = shown.length - most;
  return (
    <div class="diff" style={{ "--digits": digits }}>
      {isSplit ? (
        <SplitTable rows={drawn} inks={inks} label={label} onUnfold={unfold} />
      ) : (
        <UnifiedTable rows={drawn} inks={inks} label={label} onUnfold={unfold} />
      )}
      {left > 0 && (
        <button type="button" class="diff-more" onClick={() => setMost(most + MORE_ROWS)}>
          Show {Math.min(left, MORE_ROWS)} more of {plural(left, "line")}
        </button>
      )}
    </div>
  );
}

interface UnifiedTableProps {
  rows: readonly DiffRow[];
  inks: Inks;
  label: string;
  onUnfold: (gap: GapRow) => void;
}

function UnifiedTable({ rows, inks, label, onUnfold }: UnifiedTableProps) {
  return (
    <table aria-label={label}>
      <colgroup>
        <col class="ln old" />
        <col class="ln" />
        <col class="sg" />
        <col />
      </colgroup>
      <tbody>
        {rows.map((row, index) =>
          row.kind === "gap" || row.kind === "note" ? (
            <DiffGap key={index} row={row} columns={4} onUnfold={onUnfold} />
          ) : (
            <LineEntry key={index} row={row} inks={inks} />
          ),
        )}
      </tbody>
    </table>
  );
}

function unfoldGaps(rows: readonly DiffRow[], unfolded: ReadonlySet<number>): readonly DiffRow[] {
  if (unfolded.size === 0) return rows;
  return rows.flatMap((row): readonly DiffRow[] => (row.kind === "gap" && row.rows && unfolded.has(row.first) ? row.rows : [row]));
}

function countDigits(rows: readonly DiffRow[]): number {
  const last = rows.findLast((row): row is LineRow => row.kind !== "gap" && row.kind !== "note");
  return Math.max(3, String(Math.max(last?.left ?? 0, last?.right ?? 0)).length);
}

interface LineEntryProps {
  row: LineRow;
  inks: Inks;
}

function LineEntry({ row, inks }: LineEntryProps) {
  return (
    <tr class={row.kind}>
      <td class="ln old">{row.left || ""}</td>
      <td class="ln">{row.right || ""}</td>
      <td class="sg">{row.kind === "add" ? "+" : row.kind === "del" ? "−" : ""}</td>
      <td class="tx">
        <DiffLine text={row.text} marks={row.marks} pieces={inks.get(row)} />
      </td>
    </tr>
  );
}
