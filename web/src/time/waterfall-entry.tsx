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
  /** Which row it is, of how many. */
  place: readonly [number, number];
  isCurrent: boolean;
  /** It comes after the position. */
  isAhead: boolean;
  onClick: () => void;
}

const CLASSES: Record<SpanKind, string> = { first: "w", model: "", tool: "tool", bad: "bad", person: "per" };
const LONGEST = 120;

export function WaterfallEntry({ row, scale, place, isCurrent, isAhead, onClick }: EntryProps) {
  const text = describeRow(row);
  return (
    <div role="listitem" aria-posinset={place[0]} aria-setsize={place[1]}>
      <button
        type="button"
        class={`wf-r${isAhead ? " fut" : ""}`}
        aria-current={isCurrent || undefined}
        aria-label={readAloud(row, scale, text)}
        onClick={onClick}
      >
        <span class={row.call ? "wf-n in1" : "wf-n"}>
          <Icon name={row.call ? chooseIcon(row.call) : "chip"} class="sm" />
          <span class="cut"><VisibleText text={text.name} /></span>
        </span>
        <span class="lane">
          {row.spans.map((span, index) => (
            <Bar key={index} span={span} scale={scale} />
          ))}
        </span>
        <span class="n">{text.first}</span>
        <span class="n cut">{text.tokens}</span>
        <span class="n">{text.cost}</span>
      </button>
    </div>
  );
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
  cost: string;
}

function describeRow(row: WaterfallRow): RowText {
  const usage = row.reply?.usage ?? row.call?.finished?.usage;
  const used = (usage?.input_tokens ?? 0) + (usage?.output_tokens ?? 0);
  return {
    name: row.call ? nameCall(row) : `Turn ${row.turn}`,
    first: row.reply?.first_token ? formatDuration(row.reply.first_token) : "",
    tokens: used > 0 ? `${formatCount(usage?.input_tokens ?? 0)} → ${formatCount(usage?.output_tokens ?? 0)}` : describeEnd(row),
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

/** The row in one sentence, for those who do not see the lane. */
function readAloud(row: WaterfallRow, scale: Scale, text: RowText): string {
  const from = row.spans[0]?.from;
  const to = row.spans.at(-1)?.to;
  const parts = [
    text.name,
    from === undefined ? "" : `from ${formatClock(from - scale.from)}`,
    from !== undefined && typeof to === "number" ? `took ${formatDuration(to - from)}` : "",
    text.first && `first token after ${text.first}`,
    text.tokens && (text.tokens.includes("→") ? `tokens ${text.tokens.replace("→", "in and")} out` : text.tokens),
    text.cost,
  ];
  return parts.filter(Boolean).join(", ");
}
