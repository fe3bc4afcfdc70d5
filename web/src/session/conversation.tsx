/** The conversation of a view: its rows in a list that draws only what is in sight, and what streams in at its end. */

import type { ComponentChildren } from "preact";
import { useMemo, useRef } from "preact/hooks";
import { useKeys } from "../keys.ts";
import { Announcer } from "./announcer.tsx";
import { ChainRow } from "./chain-row.tsx";
import { ConversationContext, useConversation, type ConversationSource } from "./context.ts";
import { Folding } from "./folding.ts";
import { HelpersRow } from "./helpers-row.tsx";
import { LiveRow } from "./live-row.tsx";
import { HistoryRow, MessageRow } from "./message-row.tsx";
import { NoticeRow, RetriesRow } from "./notice-row.tsx";
import { PartialRow, ReplyRow, ThoughtRow } from "./reply-row.tsx";
import { RowBuilder, type Row, type RowKind, type Step } from "./rows.ts";
import { ToolCard } from "./tool-card.tsx";
import { VirtualRows } from "./virtual-rows.tsx";

export type { ConversationSource } from "./context.ts";

interface ConversationProps {
  source: ConversationSource;
  /** What is unfolded, if somebody else must know it. */
  folding?: Folding;
}

export function Conversation({ source, folding: given }: ConversationProps) {
  source.version.value;
  const folding = useMemo(() => given ?? new Folding(), [source.sessionId, given]);
  const builder = useMemo(() => new RowBuilder((key, steps) => isChainOpen(folding, key, steps)), [folding]);
  const foldVersion = folding.version.value;
  const lastFold = useRef(foldVersion);
  builder.update(source.view, lastFold.current !== foldVersion);
  lastFold.current = foldVersion;
  const shared = useMemo(
    () => ({ source, folding }),
    [folding, source.view, source.version, source.live, source.liveVersion, source.sessionId, source.isPast],
  );
  useKeys([{ keys: "o", label: "Unfold or fold all", where: "Session", run: () => folding.toggleAll() }]);
  const { rows } = builder;
  const lastReply = rows.findLast((row) => row.kind === "reply" || row.kind === "message");
  return (
    <ConversationContext.Provider value={shared}>
      <VirtualRows
        rows={rows}
        estimate={estimateHeight}
        draw={(row, before) => <RowFrame row={row} gap={chooseGap(before, row)} isLast={row === lastReply && row === endOf(rows)} />}
        tail={<LiveTailRow rows={rows} />}
      />
      {!source.isPast && <Announcer source={source} />}
    </ConversationContext.Provider>
  );
}

function LiveTailRow({ rows }: { rows: readonly Row[] }) {
  const last = rows.at(-1);
  // The gaps are those of the row that takes this place, so that nothing moves then.
  const after = last?.kind === "message" ? " after-message" : last && isLine(last) ? " after-line" : "";
  return (
    <div class={`tail${after}`}>
      <Waited />
      <LiveRow />
    </div>
  );
}

/** Messages that no turn had taken at a moment of the past. In the present they stand above the composer. */
function Waited() {
  const { source } = useConversation();
  if (!source.isPast) return null;
  return (
    <>
      {source.view.queue.map(({ fact, seq, at, mode }) => (
        <div key={seq}>
          <MessageRow item={{ kind: "message", seq, at, rev: 0, message: fact }} />
          <p class="m3 t12">{mode === "follow_up" ? "Waited for the end of the run." : "Waited for the next turn."}</p>
        </div>
      ))}
    </>
  );
}

/** The last row that is no notice: only an answer at the end can be asked for again. */
function endOf(rows: readonly Row[]): Row | undefined {
  return rows.findLast((row) => row.kind !== "notice");
}

/** A chain is unfolded if the reader unfolded it, or one of its cards before it became a chain. */
function isChainOpen(folding: Folding, key: string, steps: Step[]): boolean {
  return folding.isOpen(key, steps.some((step) => "call" in step && folding.isChosen(`c${step.call.call.id}`)));
}

/** A row is drawn again only if it has changed. */
function RowFrame({ row, gap, isLast }: { row: Row; gap: number; isLast: boolean }) {
  const drawn = useMemo(() => drawRow(row, isLast), [row.key, row.kind, row.rev, isLast, row.kind === "chain" && row.isOpen, sourceOf(row)]);
  return <div class={`g${gap}${HANGS.has(row.kind) ? " hang" : ""}`}>{drawn}</div>;
}

/** Another view has other objects for the turn under way. */
function sourceOf(row: Row): unknown {
  return row.kind === "call" ? row.call : row.kind === "chain" || row.kind === "helpers" ? null : row.item;
}

function drawRow(row: Row, isLast: boolean): ComponentChildren {
  switch (row.kind) {
    case "message":
      return <MessageRow item={row.item} />;
    case "history":
      return <HistoryRow item={row.item} />;
    case "thought":
      return <ThoughtRow item={row.item} isNested={row.isNested} />;
    case "reply":
      return <ReplyRow item={row.item} isLast={isLast} />;
    case "call":
      return <ToolCard call={row.call} rev={row.rev} isNested={row.isNested} />;
    case "chain":
      return <ChainRow id={row.key} steps={row.steps} isOpen={row.isOpen} />;
    case "helpers":
      return <HelpersRow calls={row.calls} />;
    case "retries":
      return <RetriesRow item={row.item} />;
    case "notice":
      return <NoticeRow item={row.item} startedAt={row.startedAt} />;
    case "partial":
      return <PartialRow item={row.item} />;
  }
}

/** Cards hang out by 8 pixels, so that their text lines up with the prose. */
const HANGS = new Set<RowKind>(["call", "chain", "helpers", "thought", "history"]);

function isLine(row: Row): boolean {
  return HANGS.has(row.kind) || row.kind === "retries";
}

function chooseGap(before: Row | undefined, row: Row): number {
  if (!before) return 0;
  const [a, b] = [isLine(before), isLine(row)];
  if (a && b) return row.kind === "helpers" || before.kind === "helpers" ? 12 : 0;
  if (row.kind === "message") return 24;
  if (before.kind === "message") return 20;
  return row.kind === "notice" || before.kind === "notice" ? 12 : 16;
}

const HEIGHTS: Partial<Record<RowKind, number>> = { message: 68, notice: 48, partial: 84, retries: 32, helpers: 84 };
const LINE = 25;
const LETTERS_IN_A_LINE = 85;

/** A guess until the row has been drawn. The better it is, the less the scroll bar moves. */
function estimateHeight(row: Row, before: Row | undefined): number {
  const gap = chooseGap(before, row);
  if (row.kind !== "reply") return gap + (HEIGHTS[row.kind] ?? 32);
  const { text = "" } = row.item.reply ?? {};
  let height = gap;
  for (let start = 0; start <= text.length; ) {
    const end = text.indexOf("\n", start);
    const length = (end < 0 ? text.length : end) - start;
    height += length > 0 ? Math.ceil(length / LETTERS_IN_A_LINE) * LINE : 12;
    start += length + 1;
  }
  return height;
}
