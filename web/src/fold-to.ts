/** Views of earlier positions. They are quick to compute also in long sessions: some positions on the way are kept. */

import { applyFact, createView } from "./fold.ts";
import type { AnyFact } from "./generated/events.ts";
import type { CallView, TurnItem, View } from "./view.ts";

/** How many facts lie between two kept views. */
const STEP = 2048;

interface Kept {
  /** `views[n]` is the view after `n * STEP` facts. */
  views: View[];
  last: View | null;
}

const keptViews = new WeakMap<readonly AnyFact[], Kept>();

/** The view at a position. Do not change it: the next request for the same position gives the same one. */
export function foldTo(facts: readonly AnyFact[], seq: number): View {
  const kept = keptViews.get(facts) ?? { views: [createView()], last: null };
  keptViews.set(facts, kept);
  const count = countUpTo(facts, seq);
  if (kept.last !== null && kept.last.seq === (facts[count - 1]?.seq ?? 0)) return kept.last;
  while (kept.views.length <= Math.floor(count / STEP)) {
    const start = (kept.views.length - 1) * STEP;
    kept.views.push(foldOn(kept.views.at(-1) ?? createView(), facts, start, start + STEP));
  }
  const nearest = Math.floor(count / STEP);
  kept.last = foldOn(kept.views[nearest] ?? createView(), facts, nearest * STEP, count);
  return kept.last;
}

function foldOn(view: View, facts: readonly AnyFact[], start: number, end: number): View {
  const copy = copyView(view);
  for (let place = start; place < end; place++) {
    const fact = facts[place];
    if (fact !== undefined) applyFact(copy, fact);
  }
  return copy;
}

/** How many of the facts have a position up to `seq`. They are in order. */
function countUpTo(facts: readonly AnyFact[], seq: number): number {
  let low = 0;
  let high = facts.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if ((facts[middle]?.seq ?? 0) <= seq) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** Copy a view, so that each of both can go on by itself. They share all that never changes. */
export function copyView(view: View): View {
  const copy: View = {
    ...view,
    items: view.items.slice(),
    queue: view.queue.slice(),
    run: view.run && { ...view.run, usage: { ...view.run.usage } },
    calls: new Map(view.calls),
    changedFiles: view.changedFiles.slice(),
    usage: { ...view.usage },
    notes: new Map(view.notes),
    inner: {
      ...view.inner,
      past: view.inner.past.slice(),
      compactions: view.inner.compactions.slice(),
      toConfigure: view.inner.toConfigure.slice(),
      changed: new Set(view.inner.changed),
    },
  };
  if (view.turn !== null) replaceTurn(copy, view.turn);
  return copy;
}

/** Only the turn under way and its calls change later on. */
function replaceTurn(view: View, turn: TurnItem): void {
  const own: TurnItem = { ...turn, calls: turn.calls.map(copyCall), failures: turn.failures.slice() };
  for (const call of own.calls) {
    for (const one of [call, ...call.requests]) if (view.calls.has(one.call.id)) view.calls.set(one.call.id, one);
  }
  const place = view.items.lastIndexOf(turn);
  if (place >= 0) view.items[place] = own;
  view.turn = own;
}

function copyCall(call: CallView): CallView {
  return { ...call, requests: call.requests.map(copyCall) };
}
