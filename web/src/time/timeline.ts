/** Where things are on the line of time: positions of turns, messages, questions and failures. It grows with the facts. */

import type { AnyFact } from "../generated/events.ts";
import type { OpenSession } from "../store/open-session.ts";

export class Timeline {
  readonly facts: readonly AnyFact[];
  /** Sorted positions. */
  readonly steps: number[] = [];
  readonly messages: number[] = [];
  readonly questions: number[] = [];
  readonly failures: number[] = [];
  readonly turns: number[] = [];
  readonly runs: number[] = [];
  private readonly turnNumbers: number[] = [];
  private read = 0;

  constructor(facts: readonly AnyFact[]) {
    this.facts = facts;
  }

  get length(): number {
    return this.read;
  }

  /** Read the facts that have arrived since the last time. */
  update(): this {
    for (; this.read < this.facts.length; this.read++) {
      const fact = this.facts[this.read];
      if (fact) this.add(fact, this.read + 1);
    }
    return this;
  }

  /** The time of a position, in seconds. */
  timeAt(seq: number): number {
    return this.facts[Math.min(Math.max(seq, 1), this.read) - 1]?.at ?? 0;
  }

  /** The turn that a position is in. 0 before the first one. */
  turnAt(seq: number): number {
    return this.turnNumbers[countUntil(this.turns, seq) - 1] ?? 0;
  }

  /** The start of the turn before or after a position. The ends of the line when there is none. */
  turnBeside(seq: number, step: -1 | 1): number {
    if (step > 0) return this.turns[countUntil(this.turns, seq)] ?? this.read;
    return this.turns[countUntil(this.turns, seq - 1) - 1] ?? 1;
  }

  /** How many turns begin after a position. */
  turnsAfter(seq: number): number {
    return this.turns.length - countUntil(this.turns, seq);
  }

  private add(fact: AnyFact, seq: number): void {
    switch (fact.type) {
      case "message_received":
        return void this.messages.push(seq);
      case "approval_requested":
      case "input_requested":
        return void this.questions.push(seq);
      case "run_started":
        return void this.runs.push(seq);
      case "turn_started":
        this.turns.push(seq);
        return void this.turnNumbers.push(fact.turn);
      case "model_replied":
        return void this.steps.push(seq);
      case "call_finished":
        return void (isFailure(fact.status) ? this.failures : this.steps).push(seq);
      case "model_failed":
        return void this.failures.push(seq);
      case "run_finished":
        return void (fact.reason === "failed" ? this.failures : this.steps).push(seq);
      default:
    }
  }
}

function isFailure(status: string): boolean {
  return status === "error" || status === "timed_out" || status === "interrupted" || status === "refused";
}

const timelines = new WeakMap<readonly AnyFact[], Timeline>();

/** The timeline of a session's facts, up to date. There is one for each list of facts. */
export function getTimeline(facts: readonly AnyFact[]): Timeline {
  const known = timelines.get(facts) ?? new Timeline(facts);
  timelines.set(facts, known);
  return known.update();
}

/** The timeline of a session. What draws it is drawn again when facts arrive. */
export function useTimeline(session: OpenSession): Timeline {
  session.version.value;
  return getTimeline(session.facts);
}

/** How many of the sorted positions are at most `seq`. */
export function countUntil(positions: readonly number[], seq: number): number {
  let low = 0;
  let high = positions.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if ((positions[middle] ?? 0) <= seq) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** The places of ticks on a line of `width` pixels, at least `gap` pixels apart. It takes no more steps than there are pixels. */
export function placeTicks(positions: readonly number[], total: number, width: number, gap: number): number[] {
  const places: number[] = [];
  const scale = (width - 1) / Math.max(1, total - 1);
  for (let index = 0; index < positions.length; ) {
    const place = Math.round(((positions[index] ?? 1) - 1) * scale);
    places.push(place);
    index = Math.max(index + 1, countUntil(positions, Math.ceil((place + gap) / scale)));
  }
  return places;
}
