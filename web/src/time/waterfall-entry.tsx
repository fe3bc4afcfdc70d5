/** One row of the waterfall: a turn or a call, with its spans on the lane. */

import { describeArgument, describeResult, chooseIcon } from "../session/tool-text.ts";
import { formatClock, formatCost, formatCount, formatDuration } from "../ui/format.ts";
import { Icon } from "../ui/icon.tsx";
import { VisibleText } from "../ui/visible-text.tsx";
import type { Scale } from "./waterfall.tsx";
import type { SpanKind, TimeSpan, WaterfallRow } from "./waterfall-rows.ts";

interface EntryProps {
  row: WaterfallRow;
  scale: Scale;
  /** Which row of the run it is. */
  index: number;
  isCurrent: boolean;
  /** It comes after the position. */
  isAhead: boolean;
  onClick: () => void;
}

const CLASSES: Record<SpanKind, string> = { first: "wf-s w", model: "wf-s", tool: "wf-s tool", bad: "wf-s bad", person: "wf-s per" };
const LONGEST = 120;
/** The head is the first row of the table. */
const FIRST_ROW = 2;

/** The button is the name of the row, and takes clicks on all of it. */
export function WaterfallEntry({ row, scale, index, isCurrent, isAhead, onClick }: EntryProps) {
  const text = describeRow(row);
  return (
    <div role="row" aria-rowindex={index + FIRST_ROW} class={`wf-r${isAhead ? " fut" : ""}${isCurrent ? " cur" : ""}`}>
      <span role="rowheader" class={row.call ? "wf-n in1" : "wf-n"}>
        <button type="button" class="wf-b" aria-current={isCurrent || undefined} onClick={onClick}>
          <Icon name={row.call ? chooseIcon(row.call) : "chip"} class="sm" />
          <span class="cut"><VisibleText text={text.name} /></span>
        </button>
      </span>
      <span role="cell" class="lane">
        <span class="sr">{describeTime(row, scale)}</span>
        {row.spans.map((span, at) => (
          <Bar key={at} span={span} scale={scale} />
        ))}
      </span>
      <span role="cell" class="n">{text.first}</span>
      <span role="cell" class="n cut" aria-label={text.tokens ? `${text.tokens.replace(" →", " in,")} out` : undefined}>
        {text.tokens || <VisibleText text={text.end} />}
      </span>
      <span role="cell" class="n">{text.cost}</span>
    </div>
  );
}

/** The row of an element in the table, from 0. Negative for the head and for what is in no row. */
export function findIndex(element: Element | null): number {
  return Number(element?.closest("[aria-rowindex]")?.getAttribute("aria-rowindex") ?? 0) - FIRST_ROW;
}

function Bar({ span, scale }: { span: TimeSpan; scale: Scale }) {
  const from = Math.max(0, span.from - scale.from);
  const to = Math.min(scale.seconds, (span.to ?? scale.from + scale.seconds) - scale.from);
  if (from > scale.seconds) return null;
  return <span class={CLASSES[span.kind]} style={{ "--x": (from / scale.seconds) * 100, "--w": (Math.max(0, to - from) / scale.seconds) * 100 }} />;
}

interface RowText {
  name: string;
  first: string;
  tokens: string;
  /** What came of it, where no tokens were used. */
  end: string;
  cost: string;
}

function describeRow(row: WaterfallRow): RowText {
  const usage = row.reply?.usage ?? row.call?.finished?.usage;
  const used = (usage?.input_tokens ?? 0) + (usage?.output_tokens ?? 0);
  return {
    name: row.call ? nameCall(row) : `Turn ${row.turn}`,
    first: row.reply?.first_token ? formatDuration(row.reply.first_token) : "",
    tokens: used > 0 ? `${formatCount(usage?.input_tokens ?? 0)} → ${formatCount(usage?.output_tokens ?? 0)}` : "",
    end: describeEnd(row),
    cost: usage?.cost ? formatCost(usage.cost) : "",
  };
}

function nameCall(row: WaterfallRow): string {
  if (!row.call) return "";
  const argument = describeArgument(row.call).split("\n", 1)[0]?.slice(0, LONGEST);
  return argument ? `${row.call.call.tool}: ${argument}` : row.call.call.tool;
}

/** "waited 0:54", "Failed, exit 1" or "+4 −1". */
function describeEnd(row: WaterfallRow): string {
  if (!row.call) return "";
  const result = describeResult(row.call);
  if (result?.isBad) return result.text;
  if (row.waited >= 1) return `waited ${formatClock(row.waited)}`;
  if (!result) return "";
  const changed = [result.added ? `+${result.added}` : "", result.removed ? `−${result.removed}` : ""];
  return result.text || changed.filter(Boolean).join(" ");
}

/** The lane in words, for those who do not see it. */
function describeTime(row: WaterfallRow, scale: Scale): string {
  const from = row.spans[0]?.from;
  const to = row.spans.at(-1)?.to;
  if (from === undefined) return "";
  return `from ${formatClock(from - scale.from)}, ${typeof to === "number" ? `took ${formatDuration(to - from)}` : "not over yet"}`;
}
