/** What is known of a row of the waterfall, beside the row while it has the pointer or the focus. */

import { useEffect, useState } from "preact/hooks";
import { readOutcome } from "../questions/outcome.ts";
import { describeArgument, describeResult } from "../session/tool-text.ts";
import { formatClock, formatCost, formatCount, formatDuration, formatModel, formatTime, plural } from "../ui/format.ts";
import { VisibleText } from "../ui/visible-text.tsx";
import { findIndex } from "./waterfall-entry.tsx";
import type { Scale } from "./waterfall.tsx";
import type { WaterfallRow } from "./waterfall-rows.ts";

const LONGEST = 400;
const WIDTH = 320;
/** A box with more lines is rare. Below this room it goes above its row. */
const ROOM = 220;

interface Place {
  index: number;
  left: number;
  top: number;
  /** It stands above the row: `top` is its lower edge. */
  isAbove: boolean;
}

/** The row under the pointer or with the focus, and handlers for the list that has the rows. */
export function useDetail() {
  const [place, setPlace] = useState<Place | null>(null);
  const hide = (): void => setPlace(null);
  const show = (event: Event): void => {
    const row = event.target instanceof Element ? event.target.closest(".wf-r") : null;
    const index = findIndex(row);
    if (!row || index < 0) return hide();
    if (place?.index !== index) setPlace({ index, ...placeBeside(row) });
  };
  const isShown = place !== null;
  useEffect(() => {
    if (!isShown) return undefined;
    addEventListener("scroll", hide, { capture: true, passive: true });
    return () => removeEventListener("scroll", hide, { capture: true });
  }, [isShown]);
  return { place, handlers: { onPointerOver: show, onPointerLeave: hide, onFocusIn: show, onFocusOut: hide } };
}

function placeBeside(row: Element): Omit<Place, "index"> {
  const box = row.getBoundingClientRect();
  const bar = row.querySelector(".wf-s")?.getBoundingClientRect();
  const isAbove = box.bottom + ROOM > innerHeight;
  const left = Math.max(8, Math.min(bar?.left ?? box.left, innerWidth - WIDTH - 8));
  return { left, top: isAbove ? box.top - 4 : box.bottom + 4, isAbove };
}

export function WaterfallDetail({ row, scale, place }: { row: WaterfallRow; scale: Scale; place: Place }) {
  const text = row.call ? describeArgument(row.call).slice(0, LONGEST) : "";
  return (
    <div class={place.isAbove ? "wf-tip above" : "wf-tip"} aria-hidden="true" style={{ "--tip-left": `${place.left}px`, "--tip-top": `${place.top}px` }}>
      <b class="w5">
        <VisibleText text={row.call ? row.call.call.tool : `Turn ${row.turn}`} />
      </b>
      {text && (
        <code>
          <VisibleText text={text} />
        </code>
      )}
      <dl class="kv">
        {listDetails(row, scale).map(([name, value]) => [
          <dt key={name}>{name}</dt>,
          <dd key={`${name}=`}>
            <VisibleText text={value.replaceAll("\u202f", " ")} />
          </dd>,
        ])}
      </dl>
    </div>
  );
}

function listDetails(row: WaterfallRow, scale: Scale): [name: string, value: string][] {
  const usage = row.reply?.usage ?? row.call?.finished?.usage;
  const from = row.spans[0]?.from;
  const to = row.spans.at(-1)?.to;
  const failures = row.call ? 0 : row.spans.filter((span) => span.kind === "bad").length;
  const outcome = row.call && readOutcome(row.call);
  const pairs: [string, string][] = [
    ["Began", from === undefined ? "" : `${formatClock(from - scale.from)}, at ${formatTime(from, { seconds: true })}`],
    ["Took", from === undefined ? "" : typeof to === "number" ? formatDuration(to - from) : "not over yet"],
    ["First token after", row.reply?.first_token ? formatDuration(row.reply.first_token) : ""],
    ["Failed tries", failures > 0 ? plural(failures, "try", "tries") : ""],
    ["Waited for a person", row.waited > 0 ? formatDuration(row.waited) : ""],
    ["Answer", outcome ? `${outcome.title} ${outcome.who}`.trim() : ""],
    ["Result", row.call ? describeEnd(row.call) : ""],
    ["Model", row.reply?.model ? formatModel(row.reply.model) : ""],
    ["Tokens in", usage?.input_tokens ? formatCount(usage.input_tokens) : ""],
    ["From cache", usage?.cached_tokens ? formatCount(usage.cached_tokens) : ""],
    ["Tokens out", usage?.output_tokens ? formatCount(usage.output_tokens) : ""],
    ["Cost", usage?.cost ? formatCost(usage.cost) : ""],
  ];
  return pairs.filter(([, value]) => value);
}

function describeEnd(call: NonNullable<WaterfallRow["call"]>): string {
  const result = describeResult(call);
  return result?.text ?? (call.finished?.status === "ok" ? "" : (call.finished?.status.replaceAll("_", " ") ?? ""));
}
