/** Two sessions to compare: how far their facts are the same, and what each has after that. */

import { useEffect, useMemo, useState } from "preact/hooks";
import type { AnyFact } from "../generated/events.ts";
import { OpenSession } from "../store/open-session.ts";
import type { Item, View } from "../view.ts";
import { countUntil, getTimeline } from "./timeline.ts";
import { getWaterfall } from "./waterfall-rows.ts";

/** Follow a session while it is on the screen. */
export function useSession(id: string): OpenSession | null {
  const [session, setSession] = useState<OpenSession | null>(null);
  useEffect(() => {
    const opened = new OpenSession(id);
    setSession(opened);
    return () => opened.close();
  }, [id]);
  return session?.id === id ? session : null;
}

/** Counts the facts that both have. Facts never change, so it goes on where it stopped. */
export class CommonFacts {
  private readonly left: readonly AnyFact[];
  private readonly right: readonly AnyFact[];
  private count = 0;

  constructor(left: readonly AnyFact[], right: readonly AnyFact[]) {
    this.left = left;
    this.right = right;
  }

  update(): number {
    for (;;) {
      const [a, b] = [this.left[this.count], this.right[this.count]];
      if (!a || !b) break;
      // A fork has a first fact of its own. What it copied has the same time as well.
      const isSame = this.count === 0 ? a.type === b.type : a.type === b.type && a.at === b.at;
      if (!isSame) break;
      this.count++;
    }
    return this.count > 1 ? this.count : 0;
  }
}

/** The position up to which both sessions are the same; 0 if they have nothing in common. */
export function useCommon(left: OpenSession | null, right: OpenSession | null): number {
  const common = useMemo(() => left && right && new CommonFacts(left.facts, right.facts), [left, right]);
  return common && left && right && left.version.value + right.version.value > 0 ? common.update() : 0;
}

/** The view without what it had at a position already. */
export function cutView(view: View, after: number): View {
  return after === 0 ? view : { ...view, items: view.items.filter((item) => endsAfter(item, after)) };
}

function endsAfter(item: Item, after: number): boolean {
  if (item.seq > after) return true;
  return item.kind === "turn" && ((item.reply?.seq ?? 0) > after || item.calls.some((call) => (call.finished?.seq ?? 0) > after));
}

export interface Numbers {
  messages: number;
  turns: number;
  calls: number;
  cost: number;
}

/** What the facts up to a position come to. */
export function countFacts(facts: readonly AnyFact[], until: number): Numbers {
  const timeline = getTimeline(facts);
  const numbers = { messages: countUntil(timeline.messages, until), turns: countUntil(timeline.turns, until), calls: 0, cost: 0 };
  for (const run of getWaterfall(facts).runs) {
    for (const row of run.rows) {
      if (row.call?.finished && row.call.finished.seq <= until) numbers.calls++;
      if (row.reply && row.reply.seq <= until) numbers.cost += row.reply.usage?.cost ?? 0;
    }
  }
  return numbers;
}

/** Seconds in which runs were under way. */
export function sumRunTime(facts: readonly AnyFact[]): number {
  const last = facts.at(-1)?.at ?? 0;
  return getWaterfall(facts).runs.reduce((sum, run) => sum + (run.endedAt ?? last) - run.startedAt, 0);
}
