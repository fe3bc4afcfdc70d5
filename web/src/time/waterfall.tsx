/** The waterfall of a run: where its time went. It is a table, and only the rows in sight are drawn. */

import type { ComponentChildren } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import type { AnyFact } from "../generated/events.ts";
import { everySecond } from "../ui/clock.ts";
import { formatClock, formatDuration } from "../ui/format.ts";
import { Icon } from "../ui/icon.tsx";
import { moveTo } from "./actions.ts";
import { getTimeline } from "./timeline.ts";
import { useDetail, WaterfallDetail } from "./waterfall-detail.tsx";
import { WaterfallEntry } from "./waterfall-entry.tsx";
import { chooseStep, getWaterfall, type Waterfall as Model, type WaterfallRow, type WaterfallRun } from "./waterfall-rows.ts";

const OVERSCAN = 8;

interface WaterfallProps {
  facts: readonly AnyFact[];
  /** The position on the screen; null is now. */
  at: number | null;
  /** Another number when facts have arrived. */
  version?: number;
  /** What a click on a row does. By default the page moves there. */
  onMove?: (at: number | null) => void;
  /** The run that goes on after this position is shown first. By default the one at `at`. */
  after?: number;
}

/** The part of the time that the lanes show, in seconds. */
export interface Scale {
  from: number;
  seconds: number;
  /** The time of the position. */
  now: number;
}

export function Waterfall({ facts, at, onMove = moveTo, after = 0 }: WaterfallProps) {
  const model = getWaterfall(facts);
  const total = facts.length;
  const seq = at ?? total;
  const [chosen, setChosen] = useState<{ seq: number; run: number } | null>(null);
  const run = (chosen?.seq === seq ? model.runs[chosen.run - 1] : undefined) ?? (after > 0 ? model.runAfter(after) : model.runAt(seq));
  if (!run) return <p class="wf-none">Nothing has run yet.</p>;
  const isOpen = run.endedAt === null && run === model.runs.at(-1);
  const end = run.endedAt ?? (isOpen && at === null ? everySecond.value : (facts.at(-1)?.at ?? run.startedAt));
  const scale: Scale = {
    from: run.startedAt,
    seconds: Math.max(0.01, end - run.startedAt),
    now: at === null && isOpen ? end : getTimeline(facts).timeAt(seq),
  };
  return (
    <RunRows
      key={run.startSeq}
      run={run}
      scale={scale}
      seq={seq}
      isNow={at === null}
      onMove={(to) => onMove(to >= total ? null : to)}
      head={<Head model={model} run={run} scale={scale} onChoose={(number) => setChosen({ seq, run: number })} />}
    />
  );
}

interface RunRowsProps {
  run: WaterfallRun;
  scale: Scale;
  seq: number;
  isNow: boolean;
  onMove: (seq: number) => void;
  head: ComponentChildren;
}

function RunRows({ run, scale, seq, isNow, onMove, head }: RunRowsProps) {
  const box = useRef<HTMLDivElement>(null);
  const { rowHeight, first, count } = useSight(box, run.rows.length);
  const current = isNow ? -1 : findCurrent(run.rows, seq);
  useEffect(() => {
    if (box.current && current >= 0) showRow(box.current, current, rowHeight);
  }, [current, rowHeight]);
  const detail = useDetail();
  const shown = detail.place && run.rows[detail.place.index];
  const last = Math.min(run.rows.length, first + count);
  const place = ((scale.now - scale.from) / scale.seconds) * 100;
  const step = (chooseStep(scale.seconds) / scale.seconds) * 100;
  return (
    <div ref={box} class="wf" style={{ "--now": Math.min(100, Math.max(0, place)), "--grid": step }}>
      <div role="table" aria-label={`Waterfall of run ${run.number}`} aria-rowcount={run.rows.length + 1} {...detail.handlers}>
        {head}
        <div style={{ height: `${first * rowHeight}px` }} />
        {run.rows.slice(first, last).map((row, index) => (
          <WaterfallEntry
            key={first + index}
            row={row}
            scale={scale}
            index={first + index}
            isCurrent={first + index === current}
            isAhead={!isNow && row.seq > seq}
            onClick={() => onMove(row.lastSeq)}
          />
        ))}
        <div style={{ height: `${(run.rows.length - last) * rowHeight}px` }} />
      </div>
      <Legend />
      {detail.place && shown && <WaterfallDetail row={shown} scale={scale} place={detail.place} />}
    </div>
  );
}

function Head({ model, run, scale, onChoose }: { model: Model; run: WaterfallRun; scale: Scale; onChoose: (run: number) => void }) {
  const step = chooseStep(scale.seconds);
  const marks = Array.from({ length: Math.floor((scale.seconds * 0.96) / step) + 1 }, (_, index) => index * step);
  const turn = (by: -1 | 1, label: string) => (
    <button type="button" class="b bare ico wf-run" aria-label={label} disabled={!model.runs[run.number - 1 + by]} onClick={() => onChoose(run.number + by)}>
      <Icon name={by < 0 ? "back" : "chev"} class="sm" />
    </button>
  );
  return (
    <div class="wf-r hd" role="row" aria-rowindex={1}>
      <span class="wf-n" role="columnheader">
        <span class="cut">
          Run {run.number}
          {model.runs.length > 1 && ` of ${model.runs.length}`}, {formatDuration(scale.seconds)}
        </span>
        {model.runs.length > 1 && (
          <span class="wf-turn">
            {turn(-1, "The run before")}
            {turn(1, "The next run")}
          </span>
        )}
      </span>
      <span class="lane hd" role="columnheader">
        <span class="sr">Time</span>
        {marks.map((mark) => (
          <em key={mark} aria-hidden="true" style={{ "--x": (mark / scale.seconds) * 100 }}>
            {step < 1 ? `${mark.toFixed(step < 0.1 ? 2 : 1)}` : formatClock(mark)}
          </em>
        ))}
      </span>
      <span class="n" role="columnheader" aria-label="First token">First</span>
      <span class="n" role="columnheader">Tokens</span>
      <span class="n" role="columnheader">Cost</span>
    </div>
  );
}

function Legend() {
  return (
    <div class="wf-l" aria-hidden="true">
      <span><i class="w" />First token</span>
      <span><i />Model</span>
      <span><i class="tool" />Tool or helper</span>
      <span><i class="per" />Waiting for you</span>
      <span><i class="bad" />Failed</span>
    </div>
  );
}

/** The row that ends at the position, or the last one that has begun. */
function findCurrent(rows: readonly WaterfallRow[], seq: number): number {
  const ending = rows.findLastIndex((row) => row.lastSeq === seq);
  return ending >= 0 ? ending : rows.findLastIndex((row) => row.seq <= seq);
}

const HEAD = 30;
const LEGEND = 30;

function showRow(box: HTMLElement, index: number, rowHeight: number): void {
  const top = index * rowHeight;
  const room = box.clientHeight - HEAD - LEGEND - rowHeight;
  if (top < box.scrollTop || top > box.scrollTop + room) box.scrollTop = Math.max(0, top - room / 2);
}

/** Which rows are in sight. */
function useSight(box: { current: HTMLElement | null }, length: number): { rowHeight: number; first: number; count: number } {
  const rowHeight = useMemo(() => (matchMedia("(pointer: coarse), (max-width: 720px)").matches ? 44 : 26), []);
  const [sight, setSight] = useState({ first: 0, count: 40 });
  useEffect(() => {
    const element = box.current;
    if (!element) return undefined;
    const measure = (): void => {
      const first = Math.max(0, Math.floor(element.scrollTop / rowHeight) - OVERSCAN);
      const count = Math.ceil(element.clientHeight / rowHeight) + 2 * OVERSCAN;
      setSight((before) => (before.first === first && before.count === count ? before : { first, count }));
    };
    measure();
    element.addEventListener("scroll", measure, { passive: true });
    const observer = new ResizeObserver(measure);
    observer.observe(element);
    return () => {
      element.removeEventListener("scroll", measure);
      observer.disconnect();
    };
  }, [box, rowHeight]);
  return { rowHeight, first: Math.min(sight.first, length), count: sight.count };
}
