/** The time, as signals that tick only while something on the page reads them. */

import { signal, type ReadonlySignal } from "@preact/signals";

function createClock(period: number): ReadonlySignal<number> {
  let timer: ReturnType<typeof setInterval> | undefined;
  const clock = signal(Date.now() / 1000, {
    watched() {
      this.value = Date.now() / 1000;
      timer = setInterval(() => (clock.value = Date.now() / 1000), period);
    },
    unwatched: () => clearInterval(timer),
  });
  return clock;
}

/** Seconds since 1970, once a second: for what is under way. */
export const everySecond = createClock(1000);
/** Seconds since 1970, every half minute: for ages. */
export const everyHalfMinute = createClock(30_000);
