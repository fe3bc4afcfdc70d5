/** A row of a diff that is no line: unchanged lines that are folded, or a note. */

import { VisibleText } from "../ui/visible-text.tsx";
import type { GapRow, NoteRow } from "./diff-rows.ts";

interface DiffGapProps {
  row: GapRow | NoteRow;
  columns: number;
  onUnfold: (gap: GapRow) => void;
}

export function DiffGap({ row, columns, onUnfold }: DiffGapProps) {
  return (
    <tr class="gap">
      <td colSpan={columns}>
        {row.kind === "gap" && row.rows ? (
          <button type="button" onClick={() => onUnfold(row)} title="Show them">
            {describeGap(row)}
          </button>
        ) : row.kind === "gap" ? (
          describeGap(row)
        ) : (
          <VisibleText text={row.text} />
        )}
      </td>
    </tr>
  );
}

function describeGap({ first, last }: GapRow): string {
  return first === last ? `Line ${first} is unchanged` : `Lines ${first} to ${last} are unchanged`;
}
