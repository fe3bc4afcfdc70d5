/** The line of time with a thumb. It draws no more ticks than it has pixels, whatever the number of facts. */

import { useSignal } from "@preact/signals";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { formatTime } from "../ui/format.ts";
import { clampPosition, moveTo } from "./actions.ts";
import { placeTicks, useTimeline, type Timeline } from "./timeline.ts";
import type { OpenSession } from "../store/open-session.ts";

/** The least pixels between ticks of few facts, and of many: a fence of ticks says nothing. */
const STEP_GAPS = [4, 12] as const;
const MARK_GAPS = [3, 3] as const;
const MESSAGE_GAPS = [3, 24] as const;

interface ScrubberProps {
  session: OpenSession;
  at: number | null;
}

export function Scrubber({ session, at }: ScrubberProps) {
  const timeline = useTimeline(session);
  const track = useRef<HTMLDivElement>(null);
  const width = useWidth(track);
  const total = Math.max(1, timeline.length);
  const drag = useDrag(track, total);
  const seq = drag.seq.value ?? at ?? total;
  // While the log is read, nobody knows yet where the end of the line is.
  const isReady = session.loading.value === "ready";
  const place = total > 1 ? ((seq - 1) / (total - 1)) * 100 : 100;
  return (
    <div
      ref={track}
      class="track"
      role="slider"
      tabIndex={0}
      aria-label="Position"
      aria-valuemin={1}
      aria-valuemax={total}
      aria-valuenow={seq}
      aria-valuetext={describePosition(timeline, seq)}
      aria-disabled={!isReady || undefined}
      onKeyDown={(event) => isReady && onKey(event, timeline, seq)}
      onPointerDown={(event) => isReady && drag.onPointerDown(event)}
      onPointerMove={drag.onPointerMove}
      onPointerUp={drag.onPointerUp}
      onPointerCancel={drag.onPointerUp}
    >
      <span class="rl" />
      <span class="rl past" style={{ "--x": place }} />
      <Ticks timeline={timeline} total={total} width={width} />
      <span class="th" style={{ "--x": place }} />
    </div>
  );
}

/** "Fact 214 of 391, 14:07:32, turn 3". */
export function describePosition(timeline: Timeline, seq: number): string {
  const turn = timeline.turnAt(seq);
  const time = formatTime(timeline.timeAt(seq), { seconds: true });
  return `Fact ${seq} of ${timeline.length}, ${time}${turn > 0 ? `, turn ${turn}` : ""}`;
}

function onKey(event: KeyboardEvent, timeline: Timeline, seq: number): void {
  if (event.altKey || event.ctrlKey || event.metaKey) return;
  const total = timeline.length;
  const page = Math.max(1, Math.round(total / 10));
  const step = event.key === "ArrowRight" || event.key === "ArrowUp" ? 1 : -1;
  const targets: Record<string, number> = {
    ArrowLeft: event.shiftKey ? timeline.turnBeside(seq, -1) : seq - 1,
    ArrowRight: event.shiftKey ? timeline.turnBeside(seq, 1) : seq + 1,
    ArrowUp: seq + step,
    ArrowDown: seq - 1,
    PageUp: seq + page,
    PageDown: seq - page,
    Home: 1,
    End: total,
  };
  const target = targets[event.key];
  if (target === undefined) return;
  event.preventDefault();
  moveTo(clampPosition(target, total));
}

/** The thumb follows the pointer at once, and the page at most once per frame. */
function useDrag(track: { current: HTMLDivElement | null }, total: number) {
  const seq = useSignal<number | null>(null);
  const frame = useRef(0);
  const follow = (event: PointerEvent): void => {
    const box = track.current?.getBoundingClientRect();
    if (!box || box.width === 0) return;
    const share = Math.min(1, Math.max(0, (event.clientX - box.left) / box.width));
    seq.value = Math.round(1 + share * (total - 1));
    if (frame.current) return;
    frame.current = requestAnimationFrame(() => {
      frame.current = 0;
      if (seq.value !== null) moveTo(clampPosition(seq.value, total));
    });
  };
  return {
    seq,
    onPointerDown: (event: PointerEvent) => {
      if (event.button !== 0) return;
      track.current?.setPointerCapture(event.pointerId);
      follow(event);
    },
    onPointerMove: (event: PointerEvent) => {
      if (seq.value !== null) follow(event);
    },
    onPointerUp: () => {
      if (seq.value !== null) moveTo(clampPosition(seq.value, total));
      seq.value = null;
    },
  };
}

function useWidth(box: { current: HTMLElement | null }): number {
  const [width, setWidth] = useState(0);
  useEffect(() => {
    if (!box.current) return;
    const observer = new ResizeObserver(([entry]) => setWidth(Math.round(entry?.contentRect.width ?? 0)));
    observer.observe(box.current);
    return () => observer.disconnect();
  }, [box]);
  return width;
}

interface TicksProps {
  timeline: Timeline;
  total: number;
  width: number;
}

function Ticks({ timeline, total, width }: TicksProps) {
  const paths = useMemo(() => {
    if (width === 0) return null;
    const draw = (positions: readonly number[], [few, many]: readonly [number, number], height: number): string =>
      placeTicks(positions, total, width, positions.length * many > width ? many : few)
        .map((x) => `M${x + 0.5} ${18 - height / 2}v${height}`)
        .join("");
    return {
      steps: draw(timeline.steps, STEP_GAPS, 12),
      failures: draw(timeline.failures, MARK_GAPS, 12),
      questions: draw(timeline.questions, MARK_GAPS, 18),
      messages: draw(timeline.messages, MESSAGE_GAPS, 24),
    };
  }, [timeline, total, width]);
  if (!paths) return null;
  return (
    <svg class="tks" width={width} height={36} aria-hidden="true">
      <path class="tk" d={paths.steps} />
      <path class="tk f" d={paths.failures} />
      <path class="tk a" d={paths.questions} />
      <path class="tk p" d={paths.messages} />
    </svg>
  );
}
