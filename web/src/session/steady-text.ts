/** Gives a growing text at the pace at which it can be drawn, so that a long block does not make the page slow. */

import { useEffect, useReducer, useRef } from "preact/hooks";

/** Drawing may take this share of the time. */
const SHARE = 4;
const QUICK = 4;

export function useSteadyText(text: string): string {
  const shown = useRef({ text: "", at: 0, cost: 0 });
  const timer = useRef<ReturnType<typeof setTimeout> | undefined>(undefined);
  const [, redraw] = useReducer((count: number) => count + 1, 0);
  const now = performance.now();
  const last = shown.current;
  const wait = last.cost <= QUICK ? 0 : last.at + last.cost * SHARE - now;
  const isDrawn = wait <= 0 || !text.startsWith(last.text);
  if (isDrawn) shown.current = { text, at: now, cost: 0 };
  useEffect(() => {
    if (isDrawn) shown.current.cost = performance.now() - now;
    clearTimeout(timer.current);
    if (!isDrawn) timer.current = setTimeout(() => redraw(undefined), wait);
    return () => clearTimeout(timer.current);
  });
  return shown.current.text;
}
