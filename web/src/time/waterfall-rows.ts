/** What a waterfall shows: per run its turns and calls with the spans of time they took. It grows with the facts. */

import type { AnyFact, Call, CallFinished, ModelFailed, ModelReplied, RunFinished } from "../generated/events.ts";
import type { CallView } from "../view.ts";

export type SpanKind = "first" | "model" | "tool" | "bad" | "person";

export interface TimeSpan {
  kind: SpanKind;
  from: number;
  /** Null while it lasts. */
  to: number | null;
}

export interface WaterfallRow {
  /** Where the row begins and ends; the same while it is under way. */
  seq: number;
  lastSeq: number;
  spans: TimeSpan[];
  /** 0 for a call. */
  turn: number;
  reply: ModelReplied | null;
  call: CallView | null;
  /** Seconds that it waited for a person. */
  waited: number;
}

export interface WaterfallRun {
  number: number;
  startSeq: number;
  startedAt: number;
  endedAt: number | null;
  /** 0 while it is under way. */
  endSeq: number;
  rows: WaterfallRow[];
}

export class Waterfall {
  readonly facts: readonly AnyFact[];
  readonly runs: WaterfallRun[] = [];
  private read = 0;
  private turn: WaterfallRow | null = null;
  private attemptAt = 0;
  private readonly calls = new Map<string, WaterfallRow>();

  constructor(facts: readonly AnyFact[]) {
    this.facts = facts;
  }

  update(): this {
    for (; this.read < this.facts.length; this.read++) {
      const fact = this.facts[this.read];
      if (fact) this.add(fact);
    }
    return this;
  }

  /** The run at a position: the last one that has started by then, or the first one. */
  runAt(seq: number): WaterfallRun | undefined {
    return this.runs.findLast((run) => run.startSeq <= seq) ?? this.runs[0];
  }

  /** The first run that goes on after a position, or the last one. */
  runAfter(seq: number): WaterfallRun | undefined {
    return this.runs.find((run) => run.endSeq === 0 || run.endSeq > seq) ?? this.runs.at(-1);
  }

  private add(fact: AnyFact): void {
    switch (fact.type) {
      case "run_started":
        this.turn = null;
        this.calls.clear();
        this.runs.push({ number: this.runs.length + 1, startSeq: fact.seq, startedAt: fact.at, endedAt: null, endSeq: 0, rows: [] });
        return;
      case "turn_started":
        this.attemptAt = fact.at;
        if (fact.calls?.length) return this.addCalls(fact.calls, fact.seq);
        this.turn = createRow(fact.seq, fact.turn);
        this.turn.spans.push({ kind: "first", from: fact.at, to: null });
        return this.addRow(this.turn);
      case "model_replied":
        return this.addReply(fact);
      case "model_failed":
        return this.addFailure(fact);
      case "run_finished":
        return this.endRun(fact);
      default:
        return this.addToCall(fact);
    }
  }

  private addRow(row: WaterfallRow): void {
    this.runs.at(-1)?.rows.push(row);
  }

  private addReply(fact: ModelReplied): void {
    const turn = this.turn;
    if (turn) {
      dropOpen(turn);
      const firstAt = Math.min(fact.at, this.attemptAt + (fact.first_token ?? 0));
      if (fact.first_token) turn.spans.push({ kind: "first", from: this.attemptAt, to: firstAt });
      turn.spans.push({ kind: "model", from: firstAt, to: fact.at });
      turn.reply = fact;
      turn.lastSeq = fact.seq;
    }
    this.addCalls(fact.calls ?? [], fact.seq);
  }

  private addFailure(fact: ModelFailed): void {
    if (!this.turn) return;
    dropOpen(this.turn);
    this.turn.spans.push({ kind: "bad", from: this.attemptAt, to: fact.at });
    this.turn.lastSeq = fact.seq;
    if (typeof fact.wait !== "number") return;
    this.attemptAt = fact.at + fact.wait;
    this.turn.spans.push({ kind: "first", from: this.attemptAt, to: null });
  }

  private addCalls(calls: readonly Call[], seq: number): void {
    for (const call of calls) {
      const row = createRow(seq, 0);
      row.call = {
        call, seq, rev: 0, asked: null, answer: null, inputAsked: null, inputAnswer: null, started: null, finished: null, requests: [],
      };
      this.calls.set(call.id, row);
      this.addRow(row);
    }
  }

  private addToCall(fact: AnyFact): void {
    if (!("call_id" in fact)) return;
    const during = fact.type === "approval_requested" ? fact.during : "";
    const row = this.calls.get(during || fact.call_id);
    if (!row?.call) return;
    if (during) this.calls.set(fact.call_id, row);
    row.lastSeq = fact.seq;
    switch (fact.type) {
      case "approval_requested":
      case "input_requested":
        return void row.spans.push({ kind: "person", from: fact.at, to: null });
      case "approval_answered":
        if (fact.call_id === row.call.call.id) row.call.answer = fact;
        return closePerson(row, fact.at);
      case "input_answered":
        row.call.inputAnswer = fact;
        return closePerson(row, fact.at);
      case "call_started":
        row.call.started = fact;
        return void row.spans.push({ kind: "tool", from: fact.at, to: null });
      case "call_finished":
        return finishCall(row, fact);
      default:
    }
  }

  private endRun({ at, seq }: RunFinished): void {
    const run = this.runs.at(-1);
    if (!run) return;
    run.endedAt = at;
    run.endSeq = seq;
    for (const row of new Set([...this.calls.values(), ...(this.turn ? [this.turn] : [])])) {
      for (const span of row.spans) span.to ??= at;
    }
    this.turn = null;
  }
}

function createRow(seq: number, turn: number): WaterfallRow {
  return { seq, lastSeq: seq, spans: [], turn, reply: null, call: null, waited: 0 };
}

/** The wait for the first token is known only when the reply is there. */
function dropOpen(row: WaterfallRow): void {
  row.spans = row.spans.filter((span) => span.to !== null);
}

function closePerson(row: WaterfallRow, at: number): void {
  const open = row.spans.findLast((span) => span.kind === "person" && span.to === null);
  if (!open) return;
  open.to = at;
  row.waited += at - open.from;
}

const BAD = new Set<CallFinished["status"]>(["error", "timed_out", "interrupted", "refused"]);

function finishCall(row: WaterfallRow, fact: CallFinished): void {
  if (row.call) row.call.finished = fact;
  closePerson(row, fact.at);
  for (const span of row.spans) {
    if (span.kind === "tool" && BAD.has(fact.status)) span.kind = "bad";
    span.to ??= fact.at;
  }
}

const waterfalls = new WeakMap<readonly AnyFact[], Waterfall>();

/** The waterfall of a session's facts, up to date. There is one for each list of facts. */
export function getWaterfall(facts: readonly AnyFact[]): Waterfall {
  const known = waterfalls.get(facts) ?? new Waterfall(facts);
  waterfalls.set(facts, known);
  return known.update();
}

const STEPS = [0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21_600, 43_200, 86_400, 172_800, 604_800];

/** Seconds between the lines of the grid: at most five of them. */
export function chooseStep(seconds: number): number {
  return STEPS.find((step) => seconds / step <= 5) ?? Math.ceil(seconds / 5);
}
