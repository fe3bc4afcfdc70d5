/** Draws only the rows of a long list that can be seen. The heights of all rows are known. */

import { useSignal } from "@preact/signals";
import { useEffect, useLayoutEffect, useRef } from "preact/hooks";
import type { RefObject } from "preact";

const MARGIN = 400;

export interface RowWindow {
  box: RefObject<HTMLDivElement>;
  first: number;
  /** After the last row that is drawn. */
  end: number;
  /** The top of each row, and at last the height of all. In pixels. */
  tops: number[];
  showRow: (index: number) => void;
}

/** Heights are in rem, so that they grow with the text. */
export function useRowWindow(heights: readonly number[]): RowWindow {
  const box = useRef<HTMLDivElement>(null);
  const view = useSignal({ top: 0, height: 900 });
  const rem = parseFloat(getComputedStyle(document.documentElement).fontSize) || 16;
  const tops = [0];
  for (const height of heights) tops.push((tops.at(-1) ?? 0) + height * rem);
  useLayoutEffect(() => {
    const element = box.current;
    if (!element) return;
    const read = (): void => {
      const next = { top: element.scrollTop, height: element.clientHeight };
      const isFar = Math.abs(next.top - view.value.top) > MARGIN / 4 || next.height !== view.value.height;
      if (isFar || next.top === 0) view.value = next;
    };
    read();
    const observer = new ResizeObserver(read);
    observer.observe(element);
    element.addEventListener("scroll", read, { passive: true });
    return () => {
      observer.disconnect();
      element.removeEventListener("scroll", read);
    };
  }, [view]);
  const { top, height } = view.value;
  const first = Math.max(0, findRow(tops, top - MARGIN));
  const end = Math.min(heights.length, findRow(tops, top + height + MARGIN) + 1);
  const showRow = (index: number): void => {
    const element = box.current;
    const [start, stop] = [tops[index] ?? 0, tops[index + 1] ?? 0];
    if (!element) return;
    if (start < element.scrollTop) element.scrollTop = start - rem * 3;
    else if (stop > element.scrollTop + element.clientHeight) element.scrollTop = stop - element.clientHeight + rem;
    view.value = { top: element.scrollTop, height: element.clientHeight };
  };
  return { box, first, end, tops, showRow };
}

/** The row at a position, by halving. */
function findRow(tops: readonly number[], at: number): number {
  let [low, high] = [0, tops.length - 1];
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if ((tops[middle] ?? 0) <= at) low = middle;
    else high = middle - 1;
  }
  return low;
}

/** Call `load` whenever the end of the list comes near. */
export function useEndOfList(window: RowWindow, count: number, load: () => void): void {
  useEffect(() => {
    if (window.end >= count) load();
  });
}
