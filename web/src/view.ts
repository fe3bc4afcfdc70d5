/** What the page knows of a session at one position: values only. `fold.ts` computes it from facts. */

import type {
  AnyFact, Access, ApprovalAnswered, ApprovalRequested, Call, CallFinished, CallStarted, ContextCompacted, InputAnswered,
  InputRequested, Limits, MessageReceived, ModelFailed, ModelReplied, Part, Rewound, RunFinished, RunStarted,
  SessionConfigured, SessionCreated, SignalDetected, Usage,
} from "./generated/events.ts";

export type { AnyFact, Access };

/** One call of a reply, with its questions, its answers and its result. `rev` grows with every change. */
export interface CallView {
  call: Call;
  seq: number;
  rev: number;
  asked: ApprovalRequested | null;
  answer: ApprovalAnswered | null;
  inputAsked: InputRequested | null;
  inputAnswer: InputAnswered | null;
  started: CallStarted | null;
  finished: CallFinished | null;
  /** What the call asked for while it was running, such as a host. */
  requests: CallView[];
}

export type CallStatus =
  | "queued" | "asked" | "allowed" | "running"
  | "ok" | "error" | "denied" | "refused" | "cancelled" | "interrupted" | "timed_out";

interface ItemBase {
  /**
   * The position of the fact that created the item: for a turn its start. It is the item's key in `items`.
   * Items stand in the order of the conversation, which is not always that of `seq`: a message may wait in the queue.
   */
  seq: number;
  at: number;
  /** Grows with every change of the item, so that only changed items are drawn again. */
  rev: number;
}

/** A message of a person that a turn has taken. */
export interface MessageItem extends ItemBase {
  kind: "message";
  message: MessageReceived;
}

/** What a client's conversation had before its first message here. Its `seq` is half a step before that message. */
export interface HistoryItem extends ItemBase {
  kind: "history";
  message: MessageReceived;
  /** The ids of the calls in it. No later call has one of them. */
  callIds: ReadonlySet<string>;
}

/** A turn: the model's reply and its calls. `reply` is null while the model writes. */
export interface TurnItem extends ItemBase {
  kind: "turn";
  turn: number;
  startedAt: number;
  /** The limit that was reached, if this is the last turn of its run, without tools. */
  wrapUp: string;
  reply: ModelReplied | null;
  /** A person's command instead of a reply of the model. */
  isCommand: boolean;
  calls: CallView[];
  /** The failures of the model in this turn. The last one may have a retry ahead. */
  failures: ModelFailed[];
  retryAt: number | null;
}

/** One line of the conversation that is neither a message nor a reply. */
export interface NoticeItem extends ItemBase {
  kind: "notice";
  fact: SignalDetected | ContextCompacted | Rewound | RunFinished | SessionConfigured | RunStarted;
}

/** A reply that was broken off, with what the model had written by then. */
export interface PartialItem extends ItemBase {
  kind: "partial";
  fact: ModelFailed;
}

export type Item = MessageItem | HistoryItem | TurnItem | NoticeItem | PartialItem;

export interface QueuedMessage {
  id: string;
  seq: number;
  at: number;
  parts: Part[];
  mode: "queue" | "interrupt" | "follow_up";
  fact: MessageReceived;
}

export interface RunView {
  id: string;
  limits: Required<Limits>;
  startedAt: number;
  startedSeq: number;
  turns: number;
  calls: number;
  usage: UsageView;
  /** Somebody asked to stop it. */
  isStopping: boolean;
  /** Seconds that it waited for people, and when it last did. */
  waited: number;
  waitedUntil: number;
}

export type UsageView = Required<Usage>;
export type RunStatus = "idle" | "running" | "waiting" | "retrying";

/** The conversation before the rewind or the regeneration at `seq`. */
export interface PastConversation {
  seq: number;
  items: readonly Item[];
  compactions: readonly ContextCompacted[];
}

/**
 * A session at one position. `applyFact` changes it in place, but only in the ways that its comments name: a finished
 * turn and everything before it never change, so views of different positions share them.
 */
export interface View {
  seq: number;
  at: number;
  created: SessionCreated | null;
  configured: SessionConfigured | null;
  name: string;
  namedByUser: boolean;
  agent: string;
  model: string;
  access: Access | null;
  pinned: boolean;
  archived: boolean;
  /**
   * What the conversation shows, in order: the present conversation, after rewinds. Items are only added at its end,
   * and only the turn under way changes. A rewind and a regeneration replace the whole array by another one.
   */
  items: Item[];
  queue: QueuedMessage[];
  /** Queued messages wait for the next message, after a stop. */
  isHeld: boolean;
  run: RunView | null;
  /** The turn under way. It is also the last turn item of `items`, once the model has replied. */
  turn: TurnItem | null;
  last: RunFinished | null;
  runs: number;
  /** All calls so far, and what running calls asked for, by id. Also those that a rewind took back. */
  calls: Map<string, CallView>;
  changedFiles: string[];
  usage: UsageView;
  /** Estimated tokens of the next request. */
  tokens: number;
  /** The model's plan. Null when there is none. */
  plan: PlanStep[] | null;
  notes: Map<string, unknown>;
  /** How often the session was rewound or regenerated, and how many compactions are in effect. */
  rewound: number;
  compacted: number;
  inner: InnerView;
}

/** What only `fold.ts` needs, to compute the rest. */
export interface InnerView {
  past: PastConversation[];
  compactions: ContextCompacted[];
  /** Settings that count from the end of the run on. */
  toConfigure: SessionConfigured[];
  /** The model that somebody chose for this session. */
  chosenModel: string;
  changed: Set<string>;
}

export interface PlanStep {
  text: string;
  status: "pending" | "doing" | "done";
}

/** A question that is open: the call that has it, and the fact that asked. */
export interface OpenQuestion {
  callId: string;
  call: CallView;
  fact: ApprovalRequested | InputRequested;
}
