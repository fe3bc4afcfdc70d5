/** The time since something began, while it is under way. */

import { everySecond } from "../ui/clock.ts";
import { formatClock } from "../ui/format.ts";

export function Elapsed({ since }: { since: number }) {
  return <>{formatClock(everySecond.value - since)}</>;
}
