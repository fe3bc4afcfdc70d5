/** What the page knows of a session at one position: values only. `fold.ts` computes it from facts. */

import type {
  AnyFact, Access, ApprovalAnswered, ApprovalRequested, Call, CallFinished, CallStarted, ContextCompacted, InputAnswered,
  InputRequested, Limits, MessageReceived, ModelFailed, ModelReplied, Part, Rewound, RunFinished, RunStarted,
  SessionConfigured, SessionCreated, SignalDetected, TurnStarted, Usage,
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
  /** The position of the fact that created the item. It is the item's key. */
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

/** What a client's conversation had before its first message here. */
export interface HistoryItem extends ItemBase {
  kind: "history";
  message: MessageReceived;
}

/** A turn: the model's reply and its calls. `reply` is null while the model writes. */
export interface TurnItem extends ItemBase {
  kind: "turn";
  turn: number;
  startedAt: number;
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
  fact: SignalDetected | ContextCompacted | Rewound | RunFinished | SessionConfigured | RunStarted | TurnStarted;
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
}

export interface RunView {
  id: string;
  limits: Limits;
  startedAt: number;
  startedSeq: number;
  turns: number;
  calls: number;
  usage: UsageView;
  /** Somebody asked to stop it. */
  isStopping: boolean;
  /** Seconds that it waited for people. */
  waited: number;
}

export type UsageView = Required<Usage>;
export type RunStatus = "idle" | "running" | "waiting" | "retrying";

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
  /** What the conversation shows, in order: the present conversation, after rewinds. */
  items: Item[];
  queue: QueuedMessage[];
  /** Queued messages wait for the next message, after a stop. */
  isHeld: boolean;
  run: RunView | null;
  /** The turn under way. It is also the last turn item of `items`, once the model has replied. */
  turn: TurnItem | null;
  last: RunFinished | null;
  runs: number;
  calls: Map<string, CallView>;
  changedFiles: string[];
  usage: UsageView;
  /** Estimated tokens of the next request. */
  tokens: number;
  plan: PlanStep[] | null;
  notes: Map<string, unknown>;
  rewound: number;
  compacted: number;
}

export interface PlanStep {
  text: string;
  status: "todo" | "doing" | "done";
}

/** A question that is open: the call that has it, and the fact that asked. */
export interface OpenQuestion {
  callId: string;
  call: CallView;
  fact: ApprovalRequested | InputRequested;
}
