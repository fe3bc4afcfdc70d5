/** A list that draws only the rows in sight. It stays at its end while the reader is there, and still otherwise. */

import type { ComponentChildren } from "preact";
import { useEffect, useLayoutEffect, useMemo, useReducer, useRef, type MutableRef } from "preact/hooks";
import { Icon } from "../ui/icon.tsx";
import { useKeys } from "../keys.ts";
import { RowPlaces } from "./row-places.ts";
import type { Row } from "./rows.ts";

/** So many rows are drawn before and after those in sight, and again when fewer than these are left. */
const DRAWN_AROUND = 5;
const NEEDED_AROUND = 2;
/** So near to the end, in pixels, the reader is at the end. */
const NEAR = 32;

export interface VirtualRowsProps {
  rows: readonly Row[];
  /** The height of a row that has not been drawn yet. */
  estimate: (row: Row, before: Row | undefined) => number;
  draw: (row: Row, before: Row | undefined) => ComponentChildren;
  /** What follows the last row, such as the reply that streams in. */
  tail: ComponentChildren;
}

type Box = MutableRef<HTMLDivElement | null>;

export function VirtualRows({ rows, estimate, draw, tail }: VirtualRowsProps) {
  const scroller = useRef<HTMLDivElement>(null);
  const column = useRef<HTMLDivElement>(null);
  const [, redraw] = useReducer((count: number) => count + 1, 0);
  const pin = usePin(scroller, column, rows.length, redraw);
  const sight = useSight(scroller, redraw);
  const places = useMemo(() => new RowPlaces<Row>(), []);
  usePlace(places, sight, scroller, pin.isPinned, () => places.update(rows, estimate));
  const [first, end] = chooseRange(places, sight, pin.isPinned.current, rows.length);
  useMeasuring(places, sight, scroller, column, redraw);
  useLayoutEffect(() => pin.follow());
  useEndKeys(pin.toEnd, scroller);
  const above = places.tops[first] ?? 0;
  const below = places.height - (places.tops[end] ?? 0);
  return (
    <div class="scroll-box">
      <div ref={scroller} class="scroll top" tabIndex={-1}>
        <div ref={column} class="col" role="log" aria-live="off" aria-label="Conversation">
          <div class="vspace" style={{ height: `${above}px` }} />
          {rows.slice(first, end).map((row, at) => (
            <div key={row.key} class="vr" data-index={first + at} data-key={row.key}>
              {draw(row, rows[first + at - 1])}
            </div>
          ))}
          <div class="vspace" style={{ height: `${below}px` }} />
          {tail}
        </div>
      </div>
      {!pin.isPinned.current && <EndPill added={rows.length - pin.seen.current} onClick={pin.toEnd} />}
    </div>
  );
}

/** The part of the list that the reader sees. */
interface Sight {
  /** Null until the list is on the screen: then its end is in sight. */
  top: number | null;
  height: number;
  /** The first row that is drawn, and the one after the last. */
  drawn: [number, number];
  find: (around: number) => [number, number];
}

function chooseRange(places: RowPlaces<Row>, sight: Sight, isPinned: boolean, count: number): [number, number] {
  const find = (top: number, around: number): [number, number] => {
    const last = places.rowAt(top + sight.height);
    return [Math.max(0, places.rowAt(top) - around), Math.min(count, last + 1 + around)];
  };
  const end = places.height - sight.height;
  sight.find = (around) => find(sight.top ?? end, around);
  const range = sight.find(DRAWN_AROUND);
  // Rows that arrive while the end is followed are drawn before anything has scrolled.
  sight.drawn = isPinned && range[1] < count ? find(end, DRAWN_AROUND) : range;
  return sight.drawn;
}

function useSight(scroller: Box, redraw: (change: unknown) => void): Sight {
  const sight = useMemo<Sight>(() => ({ top: null, height: 900, drawn: [0, 0], find: () => [0, 0] }), []);
  useLayoutEffect(() => {
    const element = scroller.current;
    if (!element) return undefined;
    const look = (): void => {
      sight.top = element.scrollTop;
      sight.height = element.clientHeight;
      const [first, end] = sight.find(NEEDED_AROUND);
      if (first < sight.drawn[0] || end > sight.drawn[1]) redraw(undefined);
    };
    const observer = new ResizeObserver(look);
    observer.observe(element);
    element.addEventListener("scroll", look, { passive: true });
    return () => {
      observer.disconnect();
      element.removeEventListener("scroll", look);
    };
  }, []);
  return sight;
}

/** Rows may come, go and change above what is in sight. The first row in sight stays where it is. */
function usePlace(places: RowPlaces<Row>, sight: Sight, scroller: Box, isPinned: MutableRef<boolean>, update: () => void): void {
  const { top } = sight;
  const first = top === null ? 0 : places.rowAt(top);
  const [key, before] = [places.keyAt(first), places.tops[first] ?? 0];
  update();
  const after = key === undefined || isPinned.current || top === null ? before : (places.topOf(key) ?? before);
  const shift = after - before;
  if (sight.top !== null) sight.top += shift;
  useLayoutEffect(() => {
    if (shift !== 0 && scroller.current) scroller.current.scrollTop += shift;
  });
}

/** Measure what is drawn, at once when it is new and again when it changes. */
function useMeasuring(places: RowPlaces<Row>, sight: Sight, scroller: Box, column: Box, redraw: (change: unknown) => void): void {
  const known = useMemo(() => new Set<Element>(), []);
  const measure = (elements: Iterable<Element>): void => {
    const drawn = [...elements].filter((one) => one instanceof HTMLElement && one.isConnected) as HTMLElement[];
    const heights = drawn.map((one) => ({
      index: Number(one.dataset.index), key: one.dataset.key ?? "", height: one.getBoundingClientRect().height,
    }));
    const above = places.measure(heights, sight.top ?? Infinity);
    if (above === null) return;
    if (above !== 0 && sight.top !== null && scroller.current) {
      scroller.current.scrollTop += above;
      sight.top = scroller.current.scrollTop;
    }
    redraw(undefined);
  };
  const latest = useRef(measure);
  latest.current = measure;
  const observer = useMemo(() => new ResizeObserver((entries) => latest.current(entries.map((entry) => entry.target))), []);
  useLayoutEffect(() => {
    const drawn = new Set(column.current?.querySelectorAll(":scope > .vr"));
    const added = [...drawn].filter((one) => !known.has(one));
    for (const one of known) {
      if (drawn.has(one)) continue;
      known.delete(one);
      observer.unobserve(one);
    }
    for (const one of added) {
      known.add(one);
      observer.observe(one);
    }
    if (added.length > 0) measure(added);
  });
  useEffect(() => () => observer.disconnect(), []);
}

function EndPill({ added, onClick }: { added: number; onClick: () => void }) {
  return (
    <button type="button" class="b pill" onClick={onClick} aria-label="Go to the end">
      {added > 0 && `${added} new`}
      <Icon name="down" class="sm" />
    </button>
  );
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
