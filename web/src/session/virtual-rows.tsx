/** A list that draws only the rows in sight. It stays at its end while the reader is there, and still otherwise. */

import { elementScroll, observeElementOffset, observeElementRect, Virtualizer } from "@tanstack/virtual-core";
import type { ComponentChildren } from "preact";
import { useEffect, useLayoutEffect, useReducer, useRef, type MutableRef } from "preact/hooks";
import { Icon } from "../ui/icon.tsx";
import { useKeys } from "../keys.ts";
import type { Row } from "./rows.ts";

const OVERSCAN = 4;
/** So near to the end, in pixels, the reader is at the end. */
const NEAR = 32;

export interface VirtualRowsProps {
  rows: readonly Row[];
  /** Another number when rows in the middle have changed. */
  generation: number;
  estimate: (row: Row, before: Row | undefined) => number;
  draw: (row: Row, before: Row | undefined) => ComponentChildren;
  /** What follows the last row, such as the reply that streams in. */
  tail: ComponentChildren;
}

type List = Virtualizer<HTMLDivElement, HTMLDivElement>;

export function VirtualRows({ rows, generation, estimate, draw, tail }: VirtualRowsProps) {
  const scroller = useRef<HTMLDivElement>(null);
  const column = useRef<HTMLDivElement>(null);
  const [, redraw] = useReducer((count: number) => count + 1, 0);
  const current = useRef({ rows, estimate });
  current.current = { rows, estimate };
  const list = useList(scroller, current, redraw);
  const pin = usePin(scroller, column, rows.length, redraw);
  keepPlace(list, rows, generation, pin.isPinned.current, scroller);
  list.setOptions({ ...list.options, count: rows.length });
  useLayoutEffect(() => list._willUpdate());
  useLayoutEffect(() => pin.follow());
  useEndKeys(pin.toEnd, scroller);
  const shown = list.getVirtualItems();
  const above = shown[0]?.start ?? 0;
  const below = list.getTotalSize() - (shown.at(-1)?.end ?? 0);
  return (
    <div class="scroll-box">
      <div ref={scroller} class="scroll top" tabIndex={-1}>
        <div ref={column} class="col" role="log" aria-live="off" aria-label="Conversation">
          <div class="vspace" style={{ height: `${above}px` }} />
          {shown.map(({ index, key }) => (
            <RowBox key={key} index={index} list={list}>
              {draw(rows[index] as Row, rows[index - 1])}
            </RowBox>
          ))}
          <div class="vspace" style={{ height: `${Math.max(0, below)}px` }} />
          {tail}
        </div>
      </div>
      {!pin.isPinned.current && <EndPill added={rows.length - pin.seen.current} onClick={pin.toEnd} />}
    </div>
  );
}

function RowBox({ index, list, children }: { index: number; list: List; children: ComponentChildren }) {
  const box = useRef<HTMLDivElement>(null);
  useLayoutEffect(() => {
    list.measureElement(box.current);
    return () => list.measureElement(null);
  }, [index]);
  return (
    <div ref={box} class="vr" data-index={index}>
      {children}
    </div>
  );
}

function EndPill({ added, onClick }: { added: number; onClick: () => void }) {
  return (
    <button type="button" class="b pill" onClick={onClick} aria-label="Go to the end">
      {added > 0 && `${added} new`}
      <Icon name="down" class="sm" />
    </button>
  );
}

/** The virtual list itself. It reads the latest rows at each question. */
function useList(
  scroller: MutableRef<HTMLDivElement | null>,
  current: MutableRef<Pick<VirtualRowsProps, "rows" | "estimate">>,
  redraw: (change: unknown) => void,
): List {
  const kept = useRef<List | null>(null);
  kept.current ??= new Virtualizer<HTMLDivElement, HTMLDivElement>({
    count: current.current.rows.length,
    getScrollElement: () => scroller.current,
    estimateSize: (index) => {
      const { rows, estimate } = current.current;
      return estimate(rows[index] as Row, rows[index - 1]);
    },
    getItemKey: (index) => current.current.rows[index]?.key ?? index,
    overscan: OVERSCAN,
    initialRect: { width: 800, height: 800 },
    observeElementRect,
    observeElementOffset,
    scrollToFn: elementScroll,
    onChange: () => redraw(undefined),
  });
  const list = kept.current;
  // Only a row that is wholly above moves what is in sight. One that is partly in sight grows downwards.
  list.shouldAdjustScrollPositionOnItemSizeChange = (row) => row.end <= (list.scrollOffset ?? 0);
  useLayoutEffect(() => list._didMount(), []);
  return list;
}

/** When rows in the middle have changed, the first row in sight stays where it is. */
function keepPlace(
  list: List,
  rows: readonly Row[],
  generation: number,
  isPinned: boolean,
  scroller: MutableRef<HTMLDivElement | null>,
): void {
  const last = useRef(generation);
  const anchor = useRef<{ key: string; offset: number } | null>(null);
  const element = scroller.current;
  if (last.current !== generation && element && !isPinned) {
    last.current = generation;
    const first = list.getVirtualItemForOffset(element.scrollTop);
    anchor.current = first ? { key: String(first.key), offset: element.scrollTop - first.start } : null;
    list.measure();
  }
  useLayoutEffect(() => {
    const wanted = anchor.current;
    anchor.current = null;
    if (!wanted || !element) return;
    const at = rows.findIndex((row) => row.key === wanted.key);
    const place = at < 0 ? undefined : list.getOffsetForIndex(at, "start");
    if (place) element.scrollTop = place[0] + wanted.offset;
  });
}

/** Whether the reader is at the end, and what keeps them there. */
function usePin(
  scroller: MutableRef<HTMLDivElement | null>,
  column: MutableRef<HTMLDivElement | null>,
  count: number,
  redraw: (change: unknown) => void,
) {
  const isPinned = useRef(true);
  const seen = useRef(count);
  const lastTop = useRef(0);
  if (isPinned.current) seen.current = count;
  const follow = (): void => {
    const element = scroller.current;
    if (!element || !isPinned.current) return;
    element.scrollTop = element.scrollHeight;
    lastTop.current = element.scrollTop;
  };
  useEffect(() => {
    const element = scroller.current;
    if (!element || !column.current) return undefined;
    const onScroll = (): void => {
      const left = element.scrollHeight - element.scrollTop - element.clientHeight;
      // What arrives below moves the end away, but only the reader moves up.
      const isUp = element.scrollTop < lastTop.current - 1;
      lastTop.current = element.scrollTop;
      const now = left <= NEAR || (isPinned.current && !isUp);
      if (now === isPinned.current) return;
      isPinned.current = now;
      redraw(undefined);
    };
    const observer = new ResizeObserver(follow);
    observer.observe(column.current);
    observer.observe(element);
    // Before the list hears of it, which draws the rows again.
    element.addEventListener("scroll", onScroll, { passive: true, capture: true });
    return () => {
      observer.disconnect();
      element.removeEventListener("scroll", onScroll, { capture: true });
    };
  }, []);
  const toEnd = (): void => {
    isPinned.current = true;
    follow();
    redraw(undefined);
  };
  return { isPinned, seen, follow, toEnd };
}

function useEndKeys(toEnd: () => void, scroller: MutableRef<HTMLDivElement | null>): void {
  const page = (part: number) => () => scroller.current?.scrollBy({ top: part * scroller.current.clientHeight });
  useKeys([
    { keys: "End", label: "Go to the end", where: "Session", run: toEnd },
    { keys: "Home", label: "Go to the beginning", where: "Session", run: () => scroller.current?.scrollTo({ top: 0 }) },
    { keys: "PageUp", label: "Scroll up", where: "Session", run: page(-0.9) },
    { keys: "PageDown", label: "Scroll down", where: "Session", run: page(0.9) },
  ]);
}
