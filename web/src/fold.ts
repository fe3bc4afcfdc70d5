/**
 * Computes what the page knows of a session from its facts, as `engine/fold.py` of the server does. Pure.
 *
 * Facts leave out what is a default. Any sequence of facts folds, also one with kinds that this page does not know.
 */

import { coversCall, unpinVersion } from "./fold-patterns.ts";
import { estimateHook, estimateItem, estimateResult, estimateTurn } from "./fold-tokens.ts";
import {
  DEFAULT_LIMITS,
  type AnyFact, type ApprovalAnswered, type ApprovalRequested, type CallFinished, type ContextCompacted,
  type InputAnswered, type InputRequested, type CallStarted, type MessageEdited, type MessageReceived, type ModelFailed,
  type ModelReplied, type Rewound, type RunFinished, type RunStarted, type SessionConfigured, type SessionCreated,
  type TurnStarted, type Usage,
} from "./generated/events.ts";
import type {
  CallView, HistoryItem, Item, NoticeItem, PlanStep, QueuedMessage, TurnItem, UsageView, View,
} from "./view.ts";

export { copyView, foldTo } from "./fold-to.ts";
export { callStatus, describeState, openQuestions, retryAt, statusOf, type StateView } from "./fold-state.ts";

const PLAN_NOTE = "treadle.todo";
const HOOK_NOTE = "treadle.hook";
/** The sandbox of a call that the client runs. */
const CLIENT = "client";

/** The settings that stay until another fact sets them, and those of them that count during a run too. */
const KEPT_SETTINGS = [
  "instructions", "limits", "approval_ttl", "web", "sampling", "output_schema", "client_tools", "access",
] as const;

export function createView(): View {
  return {
    seq: 0, at: 0, created: null, configured: null, name: "", namedByUser: false, agent: "", model: "", access: null,
    pinned: false, archived: false, items: [], queue: [], isHeld: false, run: null, turn: null, last: null, runs: 0,
    calls: new Map(), changedFiles: [], usage: createUsage(), tokens: 0, plan: null, notes: new Map(), rewound: 0,
    compacted: 0,
    inner: { past: [], compactions: [], toConfigure: [], chosenModel: "", changed: new Set() },
  };
}

function createUsage(): UsageView {
  return { input_tokens: 0, output_tokens: 0, cached_tokens: 0, reasoning_tokens: 0, cost: 0, estimated: false };
}

/** Add one fact to a view, in place. A fact that the view has already changes nothing. */
export function applyFact(view: View, fact: AnyFact): void {
  if (fact.seq <= view.seq) return;
  view.seq = fact.seq;
  view.at = fact.at;
  switch (fact.type) {
    case "session_created": return applyCreated(view, fact);
    case "session_configured":
      addNotice(view, fact);
      return applyConfigured(view, fact);
    case "session_renamed":
      if (fact.by === "auto" && view.namedByUser) return;
      view.name = fact.name;
      view.namedByUser = fact.by !== "auto";
      return;
    case "session_marked":
      view.pinned = fact.pinned ?? view.pinned;
      view.archived = fact.archived ?? view.archived;
      return;
    case "files_kept":
      for (const { path } of fact.files ?? []) addChangedFile(view, path);
      return;
    case "custom":
      if (fact.name !== HOOK_NOTE) view.notes.set(fact.name, fact.data ?? null);
      if (fact.name === PLAN_NOTE) view.plan = readPlan(fact.data);
      return;
    case "message_received": return applyMessage(view, fact);
    case "message_edited": return applyEdit(view, fact);
    case "run_requested":
      view.isHeld &&= fact.trigger === "command";
      return;
    case "cancel_requested":
      if (view.run !== null) view.run.isStopping = true;
      view.isHeld = view.queue.length > 0;
      return;
    case "retry_requested":
      if (view.turn !== null && view.turn.retryAt !== null) touch(view.turn).retryAt = null;
      return;
    case "run_started": return applyRunStarted(view, fact);
    case "turn_started": return applyTurnStarted(view, fact);
    case "run_finished": return applyRunFinished(view, fact);
    case "model_replied": return applyReply(view, fact);
    case "model_failed": return applyFailure(view, fact);
    case "approval_requested":
    case "approval_answered":
    case "input_requested":
    case "input_answered":
    case "call_started":
    case "call_finished": return applyCallFact(view, fact);
    case "signal_detected":
      addNotice(view, fact);
      if (fact.kind === "hook") view.tokens += estimateHook(fact);
      return;
    case "context_compacted": return applyCompaction(view, fact);
    case "rewound": return applyRewind(view, fact);
  }
}

// ── the session ────────────────────────────────────────────────────────────────────────────────────────────────────

function applyCreated(view: View, fact: SessionCreated): void {
  view.created = fact;
  view.agent = fact.agent?.name ?? "agent";
  updateSettings(view);
}

function applyConfigured(view: View, fact: SessionConfigured): void {
  if (view.run !== null) {
    // A run keeps its settings to its end. A client may have other tools before that, and a person may change the access.
    view.inner.toConfigure.push(fact);
    const before = view.configured ?? { type: fact.type, seq: fact.seq, at: fact.at };
    if (fact.client_tools ?? fact.access) {
      view.configured = {
        ...before,
        seq: fact.seq,
        client_tools: fact.client_tools ?? before.client_tools ?? null,
        access: fact.access ?? before.access ?? null,
      };
    }
    return updateSettings(view);
  }
  view.agent = fact.agent || view.agent;
  view.inner.chosenModel = fact.model || view.inner.chosenModel;
  const before = view.configured ?? fact;
  const kept = KEPT_SETTINGS.filter((name) => (fact[name] ?? "") === "").map((name) => [name, before[name]]);
  view.configured = { ...fact, ...(Object.fromEntries(kept) as Partial<SessionConfigured>) };
  updateSettings(view);
}

/** A session that was created in plan mode stays in it, unless somebody chose another access. */
function updateSettings(view: View): void {
  view.model = view.inner.chosenModel || (view.created?.model ?? "");
  view.access = view.configured?.access ?? (view.created?.grants?.[0]?.tier === "plan" ? "plan" : null);
}

function addChangedFile(view: View, path: string): void {
  if (view.inner.changed.has(path)) return;
  view.inner.changed.add(path);
  view.changedFiles.push(path);
}

function readPlan(data: unknown): PlanStep[] | null {
  if (!Array.isArray(data) || data.length === 0) return null;
  return data.map((step: Partial<PlanStep> | null) => ({
    text: String(step?.text ?? ""),
    status: step?.status === "doing" || step?.status === "done" ? step.status : "pending",
  }));
}

// ── messages ───────────────────────────────────────────────────────────────────────────────────────────────────────

function applyMessage(view: View, fact: MessageReceived): void {
  view.queue.push({ id: fact.id, seq: fact.seq, at: fact.at, parts: fact.parts, mode: fact.mode ?? "queue", fact });
  view.isHeld = false;
}

function applyEdit(view: View, fact: MessageEdited): void {
  const place = view.queue.findIndex((message) => message.id === fact.id);
  const message = view.queue[place];
  if (message === undefined) return;
  const parts = fact.parts ?? [];
  if (parts.length > 0) view.queue[place] = { ...message, parts, fact: { ...message.fact, parts } };
  else {
    view.queue.splice(place, 1);
    view.isHeld &&= view.queue.length > 0;
  }
}

/** Move messages from the queue to the conversation. */
function takeMessages(view: View, ids: readonly string[], at: number): void {
  const chosen = new Set(ids);
  const isTaken = (message: QueuedMessage): boolean => chosen.has(message.id);
  const taken: Item[] = view.queue.filter(isTaken).map(({ fact }) => ({ kind: "message", seq: fact.seq, at: fact.at, rev: 0, message: fact }));
  const first = taken[0];
  if (first?.kind === "message" && first.message.history?.length && !view.items.some(isEntry)) {
    taken.unshift(createHistory(first.message, at));
  }
  for (const item of taken) {
    view.items.push(item);
    view.tokens += estimateItem(item);
  }
  view.queue = view.queue.filter((message) => !isTaken(message));
}

function createHistory(message: MessageReceived, at: number): HistoryItem {
  const callIds = new Set<string>();
  for (const earlier of message.history ?? []) {
    if (earlier.role !== "model") continue;
    for (const call of earlier.calls ?? []) {
      let id = call.id;
      while (!id || callIds.has(id)) id = `${id || "call"}_${callIds.size + 1}`;
      callIds.add(id);
    }
  }
  return { kind: "history", seq: message.seq - 0.5, at, rev: 0, message, callIds };
}

/** Whether an item is a part of the conversation, and not only a note for people. */
function isEntry(item: Item): boolean {
  return item.kind !== "notice" || item.fact.type === "signal_detected" || item.fact.type === "run_started";
}

// ── runs and turns ─────────────────────────────────────────────────────────────────────────────────────────────────

function applyRunStarted(view: View, fact: RunStarted): void {
  view.turn = null;
  view.runs++;
  if (fact.trigger === "regenerate") {
    const place = view.items.findLastIndex((item) => item.kind === "message");
    const last = view.items[place];
    // A summary that reaches further contains the answer that the user rejected.
    const isKept = (one: ContextCompacted): boolean => last !== undefined && (one.through ?? 0) <= last.seq;
    replaceItems(view, view.items.slice(0, place + 1), view.inner.compactions.filter(isKept), fact.seq);
  } else if (fact.trigger && fact.trigger !== "message" && view.items.some(isEntry)) addNotice(view, fact);
  view.run = {
    id: fact.run_id, limits: { ...DEFAULT_LIMITS, ...fact.limits }, startedAt: fact.at, startedSeq: fact.seq,
    turns: 0, calls: 0, usage: createUsage(), isStopping: false, waited: 0, waitedUntil: 0,
  };
}

function createTurn(fact: AnyFact, turn: number, wrapUp = ""): TurnItem {
  return {
    kind: "turn", seq: fact.seq, at: fact.at, rev: 0, turn, startedAt: fact.at, wrapUp, reply: null, isCommand: false,
    calls: [], failures: [], retryAt: null,
  };
}

function applyTurnStarted(view: View, fact: TurnStarted): void {
  const turn = view.run === null ? null : createTurn(fact, fact.turn, fact.wrap_up ?? "");
  view.turn = turn;
  if (fact.messages?.length) takeMessages(view, fact.messages, fact.at);
  if (view.run !== null && !fact.wrap_up && fact.turn) view.run.turns++;
  if (turn !== null && fact.calls?.length) {
    turn.isCommand = true;
    addReply(view, turn, { type: "model_replied", seq: fact.seq, at: fact.at, calls: fact.calls });
    view.tokens += estimateTurn(turn);
  }
}

function applyRunFinished(view: View, fact: RunFinished): void {
  view.last = fact;
  view.run = view.turn = null;
  if (fact.reason !== "answered" && view.queue.every((message) => message.mode === "follow_up")) {
    view.isHeld = view.queue.length > 0;
  }
  addNotice(view, fact);
  const waiting = view.inner.toConfigure;
  view.inner.toConfigure = [];
  for (const configured of waiting) applyConfigured(view, configured);
}

function applyReply(view: View, fact: ModelReplied): void {
  let turn = view.turn;
  if (turn === null || turn.reply !== null) {
    turn = createTurn(fact, turn?.turn ?? 0);
    view.turn = view.run === null ? null : turn;
  }
  addReply(view, turn, fact);
  const input = fact.usage?.input_tokens ?? 0;
  view.tokens = input ? input + (fact.usage?.output_tokens ?? 0) : view.tokens + estimateTurn(turn);
}

/** Add a reply to its turn and to the conversation, with its calls. */
function addReply(view: View, turn: TurnItem, fact: ModelReplied): void {
  const first = view.items.find(isEntry);
  touch(turn).reply = fact;
  turn.retryAt = null;
  view.items.push(turn);
  addUsage(view, fact.usage);
  for (const call of fact.calls ?? []) {
    const isTaken = !call.id || view.calls.has(call.id) || (first?.kind === "history" && first.callIds.has(call.id));
    if (isTaken) continue;
    const one = createCall(call, fact.seq);
    view.calls.set(call.id, one);
    turn.calls.push(one);
  }
}

function applyFailure(view: View, fact: ModelFailed): void {
  const turn = view.turn;
  if (turn === null || turn.reply !== null) return;
  touch(turn).failures.push(fact);
  turn.retryAt = fact.wait === null || fact.wait === undefined ? null : fact.at + fact.wait;
  if (fact.kind !== "cancelled" || !fact.partial?.trim()) return;
  const item: Item = { kind: "partial", seq: fact.seq, at: fact.at, rev: 0, fact };
  view.items.push(item);
  view.tokens += estimateItem(item);
}

function addUsage(view: View, used: Usage | undefined): void {
  if (used === undefined) return;
  for (const sum of view.run === null ? [view.usage] : [view.usage, view.run.usage]) {
    sum.input_tokens += used.input_tokens ?? 0;
    sum.output_tokens += used.output_tokens ?? 0;
    sum.cached_tokens += used.cached_tokens ?? 0;
    sum.reasoning_tokens += used.reasoning_tokens ?? 0;
    sum.cost += used.cost ?? 0;
    sum.estimated ||= used.estimated ?? false;
  }
}

// ── calls ──────────────────────────────────────────────────────────────────────────────────────────────────────────

type CallFact = ApprovalRequested | ApprovalAnswered | InputRequested | InputAnswered | CallStarted | CallFinished;

function createCall(call: CallView["call"], seq: number): CallView {
  return {
    call, seq, rev: 0, asked: null, answer: null, inputAsked: null, inputAnswer: null, started: null, finished: null,
    requests: [],
  };
}

/** Apply a fact to a call of the current turn that has no result yet. Facts about other calls change nothing. */
function applyCallFact(view: View, fact: CallFact): void {
  const turn = view.turn;
  if (turn === null) return;
  if (fact.type === "approval_requested" && fact.during) return addRequest(view, turn, fact);
  const isMeant = (one: CallView): boolean => one.call.id === fact.call_id;
  let call = turn.calls.find(isMeant);
  if (call === undefined && fact.type === "approval_answered") {
    const owner = turn.calls.find((one) => one.requests.some(isMeant));
    call = owner && touch(owner).requests.find(isMeant);
  }
  if (call === undefined || call.finished !== null) return;
  touch(turn);
  changeCall(view, turn, touch(call), fact);
}

function changeCall(view: View, turn: TurnItem, call: CallView, fact: CallFact): void {
  switch (fact.type) {
    case "call_started":
      if (call.started === null && view.run !== null) view.run.calls++;
      endRequests(call, { type: "call_finished", call_id: fact.call_id, tool: fact.tool, status: "interrupted", seq: fact.seq, at: fact.at });
      call.started = fact;
      return;
    case "call_finished":
      if (call.started?.sandbox === CLIENT) addWaitingTime(view, call.started.at, fact.at);
      call.finished = fact;
      endRequests(call, fact);
      view.tokens += estimateResult(fact);
      addUsage(view, fact.usage);
      return;
    case "approval_requested":
      call.asked ??= fact;
      return;
    case "approval_answered":
      if (call.asked === null || call.answer !== null) return;
      call.answer = fact;
      addWaitingTime(view, call.asked.at, fact.at);
      return settleOthers(turn, call.asked, fact);
    case "input_requested":
      call.inputAsked ??= fact;
      return;
    case "input_answered":
      if (call.inputAsked === null || call.inputAnswer !== null) return;
      call.inputAnswer = fact;
      addWaitingTime(view, call.inputAsked.at, fact.at);
  }
}

/** Add the question of a running call. It is a call of its own in all but its result. */
function addRequest(view: View, turn: TurnItem, fact: ApprovalRequested): void {
  const running = turn.calls.find((one) => one.call.id === fact.during);
  if (running === undefined || running.started === null || running.finished !== null || view.calls.has(fact.call_id)) return;
  const request = createCall({ id: fact.call_id, tool: fact.tool, arguments: "" }, fact.seq);
  request.asked = fact;
  view.calls.set(fact.call_id, request);
  touch(turn);
  touch(running).requests.push(request);
}

/** End the requests of a call. Nobody waits any longer for those that have no answer. */
function endRequests(call: CallView, result: CallFinished): void {
  for (const request of call.requests) if (request.finished === null) touch(request).finished = result;
}

/** Let an answer for more than one call settle the other open questions that it covers. */
function settleOthers(turn: TurnItem, asked: ApprovalRequested, answer: ApprovalAnswered): void {
  const scope = answer.scope ?? "call";
  if (scope === "call" || (asked.once && answer.decision === "allow")) return;
  const saved = asked.rule ?? "";
  const rule = { tool: saved.split("(", 1)[0] ?? "", pattern: saved, session: "*" }[scope];
  const pattern = unpinVersion(rule || asked.tool);
  for (const owner of turn.calls) {
    for (const other of [owner, ...owner.requests]) {
      const question = other.asked;
      if (question === null || other.answer !== null || other.finished !== null) continue;
      if (answer.decision === "allow" && question.once) continue;
      if (!coversCall(pattern, question.tool, question.arguments ?? {})) continue;
      touch(other).answer = answer;
      if (other !== owner) touch(owner);
    }
  }
}

/** Add time that was spent waiting for a person. It does not count against the run's time limit. */
function addWaitingTime({ run }: View, since: number, until: number): void {
  if (run === null) return;
  run.waited += Math.max(0, until - Math.max(since, run.waitedUntil));
  run.waitedUntil = Math.max(until, run.waitedUntil);
}

// ── the conversation ───────────────────────────────────────────────────────────────────────────────────────────────

function addNotice(view: View, fact: NoticeItem["fact"]): void {
  view.items.push({ kind: "notice", seq: fact.seq, at: fact.at, rev: 0, fact });
}

function applyCompaction(view: View, fact: ContextCompacted): void {
  const { compactions } = view.inner;
  if (fact.kind !== "undo") {
    compactions.push(fact);
    view.tokens = fact.tokens_after || fact.tokens_before || view.tokens;
  } else {
    const undone = compactions.pop();
    if (undone !== undefined) view.tokens += countSaved(undone);
  }
  view.compacted = compactions.length;
  addUsage(view, fact.usage);
  addNotice(view, fact);
}

/** The conversation returns to an earlier one, of whole turns. Hidden items are kept for a rewind back. */
function applyRewind(view: View, fact: Rewound): void {
  if (fact.what !== "files") {
    const { past, compactions } = view.inner;
    const target = past.find((one) => one.seq > fact.to) ?? { items: view.items, compactions };
    const kept = target.items.filter((item) => findEnd(item) <= fact.to);
    replaceItems(view, kept, target.compactions.filter((one) => one.seq <= fact.to), fact.seq);
  }
  addNotice(view, fact);
}

/** The position of the last fact of an item. */
function findEnd(item: Item): number {
  if (item.kind === "history") return item.message.seq - 1;
  if (item.kind !== "turn") return item.seq;
  return item.calls.reduce((end, call) => Math.max(end, call.finished?.seq ?? 0), 0) || (item.reply?.seq ?? item.seq);
}

function replaceItems(view: View, items: Item[], compactions: ContextCompacted[], seq: number): void {
  const { inner } = view;
  const before = measure(view.items, inner.compactions);
  view.tokens = Math.max(0, view.tokens - before + measure(items, compactions));
  inner.past.push({ seq, items: view.items, compactions: inner.compactions });
  inner.compactions = compactions;
  view.items = items;
  view.rewound = inner.past.length;
  view.compacted = compactions.length;
}

function measure(items: readonly Item[], compactions: readonly ContextCompacted[]): number {
  return items.reduce((sum, item) => sum + estimateItem(item), 0) - compactions.reduce((sum, one) => sum + countSaved(one), 0);
}

function countSaved(fact: ContextCompacted): number {
  return Math.max(0, (fact.tokens_before ?? 0) - (fact.tokens_after ?? 0));
}

/** Note that something changes, so that it is drawn again. */
function touch<T extends { rev: number }>(one: T): T {
  one.rev++;
  return one;
}
