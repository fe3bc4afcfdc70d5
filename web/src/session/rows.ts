/** The rows of a conversation, built from the items of a view. Only the end is built again when facts arrive. */

import { describeNotice } from "./notice-text.ts";
import type { CallView, HistoryItem, Item, MessageItem, NoticeItem, PartialItem, TurnItem, View } from "../view.ts";

export type Step = { thought: TurnItem } | { call: CallView };

interface RowBase {
  /** Stays the same while the row is about the same thing. */
  key: string;
  /** Grows with every change of what the row shows. */
  rev: number;
  /** The position that a link to the row leads to. */
  seq: number;
  /** The first item that the row is about. */
  from: number;
}

export type Row = RowBase &
  (
    | { kind: "message"; item: MessageItem }
    | { kind: "history"; item: HistoryItem }
    | { kind: "thought"; item: TurnItem; isNested: boolean }
    | { kind: "reply"; item: TurnItem }
    | { kind: "call"; call: CallView; item: TurnItem; isNested: boolean }
    | { kind: "chain"; steps: Step[]; isOpen: boolean }
    | { kind: "helpers"; calls: CallView[] }
    | { kind: "retries"; item: TurnItem }
    | { kind: "notice"; item: NoticeItem; startedAt: number }
    | { kind: "partial"; item: PartialItem }
  );

export type RowKind = Row["kind"];

/** A longer chain is parted, so that a change costs the same however long the session is. */
const LONGEST_CHAIN = 100;
/** Items at the end that may have changed since the last build: the calls of the last turns finish late. */
const LATE_ITEMS = 24;
export const HELPER_TOOL = "delegate";

export class RowBuilder {
  readonly rows: Row[] = [];
  private items: Item[] = [];
  private chain: (Row & { kind: "chain" }) | null = null;
  /** Steps that may become a chain: a single one stays a card. */
  private steps: Step[] = [];
  private stepsFrom = 0;
  private readonly isChainOpen: (key: string, steps: Step[]) => boolean;

  constructor(isChainOpen: (key: string, steps: Step[]) => boolean) {
    this.isChainOpen = isChainOpen;
  }

  /** Bring the rows up to date. With `all`, every row is built again, because something was folded or unfolded. */
  update(view: View, all = false): void {
    const { items } = view;
    const common = Math.min(items.length, this.items.length);
    const isSame = this.hasSameStart(items, common);
    let from = all || !isSame ? 0 : Math.max(0, common - LATE_ITEMS);
    // A row may be about several items: it is built again as a whole.
    while (this.rows.length > 0) {
      const last = this.rows.at(-1) as Row;
      if (this.endOf(last) < from) break;
      from = Math.min(from, last.from);
      this.rows.pop();
    }
    this.items.length = Math.min(this.items.length, from);
    for (let at = from; at < items.length; at++) this.add(items[at] as Item, at);
    this.flush();
  }

  /** Whether both begin with the same items. Only the turn under way may be another object in another view. */
  private hasSameStart(items: readonly Item[], common: number): boolean {
    for (let at = common - 1; at >= Math.max(0, common - LATE_ITEMS); at--) if (items[at] === this.items[at]) return true;
    return false;
  }

  /** The last item that a row is about. Rows of one item follow each other, so this is known only for chains. */
  private endOf(row: Row): number {
    return row.kind === "chain" ? (this.ends.get(row) ?? row.from) : row.from;
  }

  private readonly ends = new WeakMap<Row, number>();

  private add(item: Item, at: number): void {
    this.items[at] = item;
    switch (item.kind) {
      case "message":
        this.push({ kind: "message", item, key: `m${item.seq}`, rev: item.rev, seq: item.seq, from: at });
        break;
      case "history":
        this.push({ kind: "history", item, key: `h${item.seq}`, rev: item.rev, seq: item.seq, from: at });
        break;
      case "partial":
        this.push({ kind: "partial", item, key: `p${item.seq}`, rev: item.rev, seq: item.seq, from: at });
        break;
      case "notice":
        this.addNotice(item, at);
        break;
      case "turn":
        this.addTurn(item, at);
    }
  }

  private addNotice(item: NoticeItem, at: number): void {
    if (!isShown(item)) return;
    const startedAt = item.fact.type === "run_finished" ? this.findRunStart(at) : 0;
    this.push({ kind: "notice", item, startedAt, key: `n${item.seq}`, rev: item.rev, seq: item.seq, from: at });
  }

  /** When the run began that ended at this item: when its first turn began. 0 when that turn is not among the items. */
  private findRunStart(end: number): number {
    let first: TurnItem | null = null;
    for (let at = end - 1; at >= 0; at--) {
      const item = this.items[at];
      if (item?.kind === "notice" && item.fact.type === "run_finished") break;
      if (item?.kind === "turn") first = item;
      if (end - at > 5000) break;
    }
    return first?.turn === 1 ? first.startedAt : 0;
  }

  private addTurn(item: TurnItem, at: number): void {
    // Chains part only between items, so that building one again does not reach into the one before.
    if (this.steps.length >= LONGEST_CHAIN) this.flush();
    const { reply, seq, rev } = item;
    const hasText = (reply?.text ?? "").trim() !== "";
    if (item.failures.length > 0 && reply) {
      this.push({ kind: "retries", item, key: `f${seq}`, rev, seq, from: at });
    }
    if (reply?.reasoning?.trim()) {
      if (hasText || this.steps.length === 0) {
        this.push({ kind: "thought", item, isNested: false, key: `t${seq}`, rev, seq, from: at });
      } else this.addStep({ thought: item }, at);
    }
    if (hasText) this.push({ kind: "reply", item, key: `r${seq}`, rev, seq, from: at });
    for (const call of item.calls) this.addCall(call, item, at);
  }

  private addCall(call: CallView, item: TurnItem, at: number): void {
    if (call.call.tool === HELPER_TOOL) return this.addHelper(call, at);
    if (isQuiet(call)) return this.addStep({ call }, at, item);
    this.push(buildCallRow(call, item, at, false));
  }

  private addHelper(call: CallView, at: number): void {
    this.flush();
    const last = this.rows.at(-1);
    if (last?.kind === "helpers" && last.from === at) {
      last.calls.push(call);
      last.rev += call.rev + 1;
    } else {
      this.push({ kind: "helpers", calls: [call], key: `k${call.call.id}`, rev: call.rev, seq: call.seq, from: at });
    }
  }

  private addStep(step: Step, at: number, item?: TurnItem): void {
    if (this.steps.length === 0) this.stepsFrom = at;
    this.steps.push(step);
    if (item && "call" in step) this.owners.set(step.call, item);
    this.lastStepAt = at;
  }

  private readonly owners = new WeakMap<CallView, TurnItem>();
  private lastStepAt = 0;

  private push(row: Row): void {
    this.flush();
    this.rows.push(row);
  }

  /** Turn the collected steps into a card or a chain. */
  private flush(): void {
    const { steps, stepsFrom: from } = this;
    if (steps.length === 0) return;
    this.steps = [];
    const calls = steps.flatMap((step) => ("call" in step ? [step.call] : []));
    const isNested = calls.length > 1;
    if (isNested) this.pushChain(steps, calls, from);
    for (const step of isNested && !this.chain?.isOpen ? [] : steps) this.pushStep(step, from, isNested);
    this.chain = null;
  }

  private pushChain(steps: Step[], calls: CallView[], from: number): void {
    const key = `g${calls[0]?.call.id ?? ""}`;
    const rev = steps.reduce((sum, step) => sum + 1 + ("call" in step ? step.call.rev : step.thought.rev), 0);
    const chain = { kind: "chain" as const, steps, isOpen: this.isChainOpen(key, steps), key, rev, seq: calls[0]?.seq ?? 0, from };
    this.chain = chain;
    this.rows.push(chain);
    this.ends.set(chain, this.lastStepAt);
  }

  private pushStep(step: Step, from: number, isNested: boolean): void {
    if ("thought" in step) {
      const { thought: item } = step;
      this.rows.push({ kind: "thought", item, isNested, key: `t${item.seq}`, rev: item.rev, seq: item.seq, from });
    } else {
      const item = this.owners.get(step.call) as TurnItem;
      this.rows.push(buildCallRow(step.call, item, from, isNested));
    }
    const row = this.rows.at(-1);
    if (row) this.ends.set(row, this.lastStepAt);
  }
}

function buildCallRow(call: CallView, item: TurnItem, from: number, isNested: boolean): Row {
  return { kind: "call", call, item, isNested, key: `c${call.call.id}`, rev: call.rev, seq: call.seq, from };
}

/** A call that went well folds into a chain. What runs, failed or asked stays in sight. */
function isQuiet(call: CallView): boolean {
  return call.finished?.status === "ok" && !call.finished.fatal;
}

/** Notices that say nothing to a person are left out. A greeting and its answer need no word about how the run ended. */
function isShown(item: NoticeItem): boolean {
  const { fact } = item;
  if (fact.type === "run_finished") return fact.reason !== "answered" || (fact.turns ?? 0) > 1 || (fact.calls ?? 0) > 0;
  return (fact.type === "context_compacted" && fact.kind !== "undo") || describeNotice(item) !== "";
}
