/** Written by scripts/write_web_types.py from docs/events.schema.json. Do not edit: run `make types`. */

/** The agent's configuration when the session was created. It has only values, so it can be stored. */
export interface AgentConfig {
  name?: string;
  instructions?: string;
  tools?: string[];
  sampling?: Sampling;
  output_schema?: Record<string, unknown> | null;
}

export interface ApprovalAnswered {
  type: "approval_answered";
  call_id: string;
  decision: "allow" | "deny";
  scope?: "call" | "pattern" | "session" | "tool";
  by?: string;
  comment?: string;
  seq: number;
  at: number;
}

/** `digest` binds an answer to the call that was shown. `rule` is the pattern that scope `pattern` remembers.
 * 
 * `once`: a yes is valid for this call only, whatever its scope, because the call is too dangerous. `flow`: it could
 * let private data out, or make a lasting change, because text of others asked for it. `hook`: a hook asks, so no
 * option and no rule answers. `during` names a running call that asks for more; then `call_id` names this question. */
export interface ApprovalRequested {
  type: "approval_requested";
  call_id: string;
  tool: string;
  arguments: Record<string, unknown>;
  safety: "caution" | "destructive" | "safe";
  why: string;
  rule?: string;
  once?: boolean;
  flow?: boolean;
  digest?: string;
  expires_at?: number | null;
  during?: string;
  hook?: boolean;
  seq: number;
  at: number;
}

/** One tool call as the model wrote it. `arguments` is its unchanged JSON text, which may be invalid. */
export interface Call {
  id: string;
  tool: string;
  arguments?: string;
}

/** A piece of a call that the model is still writing. `index` is the place of the call in the reply. */
export interface CallDelta {
  type: "call_delta";
  index: number;
  tool?: string;
  arguments?: string;
  after?: number;
}

/** `fatal` means that the run ends as failed once the other calls of the reply are settled.
 * 
 * `usage` is the usage of models during the call, such as a helper's. It counts as the run's own usage. `safety` is
 * the class that decided, for a call that was denied before it began. `sources` are what the result is made of,
 * besides what the tool always brings in. */
export interface CallFinished {
  type: "call_finished";
  call_id: string;
  tool: string;
  status: "cancelled" | "denied" | "error" | "interrupted" | "ok" | "refused" | "timed_out";
  output?: string;
  parts?: (TextPart | ImagePart | FilePart)[];
  truncation?: Truncation | null;
  duration?: number;
  fatal?: boolean;
  usage?: Usage;
  safety?: "caution" | "destructive" | "safe" | null;
  sources?: string[];
  seq: number;
  at: number;
}

/** The intent, stored before the effect. `arguments` are the checked and converted arguments that really run.
 * 
 * A call that `resumes` continues its work when it is run again, so a crash never closes it. With the sandbox
 * "client" the client runs the call: the run waits for the result, until `expires_at`. `access` is the tier it has. */
export interface CallStarted {
  type: "call_started";
  call_id: string;
  tool: string;
  arguments?: Record<string, unknown>;
  attempt?: number;
  safety?: "caution" | "destructive" | "safe";
  sandbox?: string;
  why?: string;
  owner?: string;
  epoch?: number;
  resumes?: boolean;
  expires_at?: number | null;
  access?: "full" | "plan" | "read-only" | "sandbox" | null;
  seq: number;
  at: number;
}

/** Somebody asked to stop the run. The process that runs it settles its calls. */
export interface CancelRequested {
  type: "cancel_requested";
  by?: string;
  why?: string;
  seq: number;
  at: number;
}

/** From now on the model reads the facts up to `through` pruned, or reads the `summary` instead of them.
 * 
 * `undo` cancels the last compaction that is in effect. `usage` is the usage for writing the summary. */
export interface ContextCompacted {
  type: "context_compacted";
  kind: "prune" | "summary" | "undo";
  through?: number;
  tokens_before?: number;
  tokens_after?: number;
  summary?: string;
  usage?: Usage;
  seq: number;
  at: number;
}

/** Data of middleware or a tool, under a namespaced name such as `acme.audit`. */
export interface Custom {
  type: "custom";
  name: string;
  data?: unknown;
  seq: number;
  at: number;
}

/** A file that goes with a message: base64 `data` with its name and media type. */
export interface FilePart {
  type: "file";
  name: string;
  data?: string;
  media_type?: string;
}

/** The old contents of files that a call changes. It is stored before the change, if the files are known by then.
 * 
 * `tree` names a list of all files before the call, for calls that may change any file. `refs` has what a command
 * changed in git repositories. It is stored after the change. */
export interface FilesKept {
  type: "files_kept";
  call_id: string;
  files?: KeptFile[];
  tree?: string;
  left_out?: string[];
  refs?: KeptRef[];
  seq: number;
  at: number;
}

/** What may run: the tier, and patterns such as `read_*`, `shell(git *)` or `write_file(src/**)`.
 * 
 * Only the `tools` may be used. `forbid` wins over `ask`, and `ask` over `approve`. `yes` approves every call that
 * would be asked. `ask_all` asks for every call that `approve` does not name, and `cautious` for every call that is
 * not safe. `always` are the patterns that a person approved permanently: they approve like `approve`, except calls
 * that must be asked each time. `approve_flow` are the patterns of calls that may let private data out, or make a
 * lasting change, after text that others wrote. Only those of the operator's grant count. */
export interface Grant {
  tier?: "full" | "plan" | "read-only" | "sandbox";
  approve?: string[];
  ask?: string[];
  forbid?: string[];
  tools?: string[];
  yes?: boolean;
  ask_all?: boolean;
  cautious?: boolean;
  always?: string[];
  approve_flow?: string[];
}

/** An image: base64 `data` with its media type, or a `url` the provider may fetch. */
export interface ImagePart {
  type: "image";
  data?: string;
  media_type?: string;
  url?: string;
}

export interface InputAnswered {
  type: "input_answered";
  call_id: string;
  answers: string[];
  by?: string;
  seq: number;
  at: number;
}

export interface InputRequested {
  type: "input_requested";
  call_id: string;
  questions: Question[];
  expires_at?: number | null;
  seq: number;
  at: number;
}

/** A file before a change. `before` names the kept content, and is empty if there was no file. */
export interface KeptFile {
  path: string;
  before?: string;
  mode?: number;
}

/** A branch, a tag, the stash, `HEAD` or the index of a git repository, before and after a change.
 * 
 * `repository` is the work tree's folder, empty for the workspace. An empty value means that there was none. A value
 * is the id of an object; that of `HEAD` may be `ref: refs/heads/NAME`. If there are several stashes, a hash of their
 * list follows. That of `index` is a hash of its entries. `content` names the earlier index, or log of the stash. */
export interface KeptRef {
  ref: string;
  before?: string;
  after?: string;
  repository?: string;
  content?: string;
}

/** The budget of one run. `turns=0` means text only. None means no limit of that kind.
 * 
 * `retry_seconds` is how long the run waits for a provider that is overloaded or cannot be reached, before it fails.
 * `attempts` is how often a turn is tried when the model fails by an error of its own. `doom_loop` detects repeated
 * calls, `implicit_signals` a stuck model and a hand-back in plain words. More turns than `ceiling` are refused. */
export interface Limits {
  turns?: number;
  calls?: number;
  tokens?: number | null;
  seconds?: number | null;
  cost?: number | null;
  attempts?: number;
  doom_loop?: boolean;
  implicit_signals?: boolean;
  ceiling?: number;
  retry_seconds?: number;
}

/** Other `parts` for a message that no run has taken yet. Without parts, the message is withdrawn. */
export interface MessageEdited {
  type: "message_edited";
  id: string;
  parts?: (TextPart | ImagePart | FilePart)[];
  by?: string;
  seq: number;
  at: number;
}

/** `history` is what the sender's conversation had before. It counts only for the first message of a session. */
export interface MessageReceived {
  type: "message_received";
  id: string;
  parts: (TextPart | ImagePart | FilePart)[];
  mode?: "follow_up" | "interrupt" | "queue";
  key?: string;
  history?: (UserMessage | ModelMessage | ResultMessage)[];
  seq: number;
  at: number;
}

/** `wait` is the number of seconds before the next attempt, or None if there is no next attempt.
 * 
 * `give_up_at` is when the attempts end, and `status` the HTTP status of the provider, if there was one. */
export interface ModelFailed {
  type: "model_failed";
  kind: "auth" | "bad_request" | "cancelled" | "content_filter" | "internal" | "network" | "overloaded" | "quota" | "stalled" | "too_long";
  message: string;
  retryable?: boolean;
  attempt?: number;
  wait?: number | null;
  partial?: string;
  status?: number;
  give_up_at?: number | null;
  seq: number;
  at: number;
}

/** The model's text and its calls. */
export interface ModelMessage {
  role: "model";
  text?: string;
  calls?: Call[];
  reasoning?: string;
  opaque?: string;
  model?: string;
}

/** `sources` name the texts besides the conversation that the model read for the first time, such as AGENTS.md.
 * 
 * `first_token` is how many seconds after the request the first fragment of the reply came, if that was measured. */
export interface ModelReplied {
  type: "model_replied";
  text?: string;
  reasoning?: string;
  calls?: Call[];
  finish?: "calls" | "filter" | "length" | "other" | "stop";
  usage?: Usage;
  model?: string;
  opaque?: string;
  confidence?: number | null;
  sources?: string[];
  first_token?: number | null;
  seq: number;
  at: number;
}

export interface OutputDelta {
  type: "output_delta";
  call_id: string;
  text: string;
  after?: number;
}

/** The session that this one was forked from, or the session and call that started it. */
export interface Parent {
  session_id: string;
  seq: number;
  call_id?: string;
}

export interface Progress {
  type: "progress";
  message: string;
  call_id?: string;
  done?: number | null;
  total?: number | null;
  after?: number;
}

/** A question to a person. The `options` are suggestions, unless `strict` is set. */
export interface Question {
  text: string;
  options?: string[];
  strict?: boolean;
}

export interface ReasoningDelta {
  type: "reasoning_delta";
  text: string;
  after?: number;
}

/** The result of one call. */
export interface ResultMessage {
  role: "result";
  call_id: string;
  tool: string;
  text: string;
  ok?: boolean;
  parts?: (TextPart | ImagePart | FilePart)[];
}

/** Somebody asked to end the wait for the provider: the model is asked again now. */
export interface RetryRequested {
  type: "retry_requested";
  by?: string;
  seq: number;
  at: number;
}

/** The session was rewound to position `to`. `files` and `refs` say what was there, so that this can be undone. */
export interface Rewound {
  type: "rewound";
  to: number;
  what?: "both" | "conversation" | "files";
  files?: KeptFile[];
  by?: string;
  refs?: KeptRef[];
  seq: number;
  at: number;
}

export interface RunFinished {
  type: "run_finished";
  run_id: string;
  reason: "answered" | "call_limit" | "cancelled" | "cost_limit" | "doom_loop" | "failed" | "stuck" | "time_limit" | "token_limit" | "turn_limit" | "yielded";
  answer?: string;
  usage?: Usage;
  turns?: number;
  calls?: number;
  can_continue?: boolean;
  error?: string;
  confidence?: number | null;
  seq: number;
  at: number;
}

/** Somebody asked for a run without a message: with the calls of the reply at `after`, or of their own `command`. */
export interface RunRequested {
  type: "run_requested";
  trigger: "command" | "continue" | "message" | "recover" | "regenerate" | "resume";
  limits?: Limits | null;
  by?: string;
  after?: number;
  command?: string;
  seq: number;
  at: number;
}

export interface RunStarted {
  type: "run_started";
  run_id: string;
  limits: Limits;
  trigger?: "command" | "continue" | "message" | "recover" | "regenerate" | "resume";
  seq: number;
  at: number;
}

/** Sampling options of a model. None leaves the choice to the provider.
 * 
 * `extra` has more options under their Chat Completions names. Each protocol writes them under its own names, and
 * refuses those that change the meaning and that it cannot take. A field named after a protocol (`chat`, `anthropic`,
 * `responses`, `ollama`) holds fields for that protocol alone. Other fields are passed on unchanged. */
export interface Sampling {
  temperature?: number | null;
  top_p?: number | null;
  seed?: number | null;
  stop?: string[];
  extra?: Record<string, unknown>;
}

/** The session's agent, model and other settings from the next run on. Empty fields change nothing.
 * 
 * `approve` are patterns that an authorized person approved in advance: they turn ask into allow. `web` is false for
 * a session that may not use the web tools. It cannot allow more than the operator and the project allow.
 * `client_tools` are offered to the model from the next turn on, and the client runs their calls. `access` replaces
 * `access_before` from the next call on, as far as the running process allows. An empty `output_schema` means text. */
export interface SessionConfigured {
  type: "session_configured";
  agent?: string;
  model?: string;
  instructions?: string;
  limits?: Limits | null;
  approval_ttl?: number | null;
  approve?: string[];
  web?: boolean | null;
  by?: string;
  sampling?: Sampling | null;
  output_schema?: Record<string, unknown> | null;
  client_tools?: ToolSpec[] | null;
  access?: "full" | "plan" | "read-only" | "sandbox" | null;
  access_before?: "full" | "plan" | "read-only" | "sandbox" | null;
  seq: number;
  at: number;
}

/** `grants` has the operator's grant first, and then the narrower ones. The strictest of them decides.
 * 
 * `sources` are those of the parent when it started this session: see `permissions/data_flow.py`. */
export interface SessionCreated {
  type: "session_created";
  session_id: string;
  agent?: AgentConfig;
  model?: string;
  workspace?: string;
  limits?: Limits;
  grants?: Grant[];
  parent?: Parent | null;
  sources?: string[];
  seq: number;
  at: number;
}

/** Somebody pinned the session, archived it, or took that back. None changes nothing. */
export interface SessionMarked {
  type: "session_marked";
  pinned?: boolean | null;
  archived?: boolean | null;
  by?: string;
  seq: number;
  at: number;
}

export interface SessionRenamed {
  type: "session_renamed";
  name: string;
  by?: "auto" | "user";
  seq: number;
  at: number;
}

export interface SignalDetected {
  type: "signal_detected";
  kind: "answered" | "compaction_failed" | "doom_loop" | "empty_reply" | "hook" | "invalid_output" | "stray_calls" | "stuck" | "tool_retry" | "uncertain" | "yielded";
  detail?: string;
  seq: number;
  at: number;
}

/** A piece of the reply's text. `logprobs` has an entry for each of its tokens, if the request asked for them. */
export interface TextDelta {
  type: "text_delta";
  text: string;
  logprobs?: unknown[];
  after?: number;
}

/** Plain text. `file` is the name of the attached file that it was read from. */
export interface TextPart {
  type: "text";
  text: string;
  file?: string;
}

/** The description of a tool for a model. `examples` are short requests with the matching arguments.
 * 
 * `strict` asks the provider to guarantee that the arguments match `parameters`. None leaves it to the provider. */
export interface ToolSpec {
  name: string;
  description: string;
  parameters: Record<string, unknown>;
  examples?: [string, Record<string, unknown>][];
  strict?: boolean | null;
}

/** The numbers of kept and dropped characters of an output, and the artifact with the whole output. */
export interface Truncation {
  kept: number;
  dropped: number;
  artifact?: string;
}

/** `wrap_up` names the limit that was reached. It is set for the last turn, which has no tools.
 * 
 * Turn 0 is not counted, because the model is not asked: it has the calls of an earlier reply, or a person's `calls`. */
export interface TurnStarted {
  type: "turn_started";
  turn: number;
  messages?: string[];
  tools?: boolean;
  wrap_up?: "answered" | "call_limit" | "cancelled" | "cost_limit" | "doom_loop" | "failed" | "stuck" | "time_limit" | "token_limit" | "turn_limit" | "yielded" | null;
  calls?: Call[];
  seq: number;
  at: number;
}

/** Tokens and cost of one reply or one run. `estimated` means that the provider did not count. */
export interface Usage {
  input_tokens?: number;
  output_tokens?: number;
  cached_tokens?: number;
  reasoning_tokens?: number;
  cost?: number;
  estimated?: boolean;
}

/** A message from a person, or a note of the runtime to the model.
 * 
 * `is_system` marks an instruction of the client in the middle of a conversation. A provider that has no place for
 * it reads it between `<system>` tags. */
export interface UserMessage {
  role: "user";
  parts: (TextPart | ImagePart | FilePart)[];
  is_system?: boolean;
}

export type Part = TextPart | ImagePart | FilePart;

export type Access = NonNullable<SessionConfigured["access"]>;

export type CallStatusFact = NonNullable<CallFinished["status"]>;

export type AnyFact =
  | SessionCreated
  | SessionRenamed
  | SessionMarked
  | MessageReceived
  | MessageEdited
  | RunRequested
  | CancelRequested
  | RetryRequested
  | RunStarted
  | TurnStarted
  | ModelReplied
  | ModelFailed
  | ApprovalRequested
  | ApprovalAnswered
  | InputRequested
  | InputAnswered
  | CallStarted
  | CallFinished
  | SignalDetected
  | ContextCompacted
  | RunFinished
  | SessionConfigured
  | FilesKept
  | Rewound
  | Custom;

export type AnyDelta =
  | TextDelta
  | ReasoningDelta
  | CallDelta
  | OutputDelta
  | Progress;

export type AnyEvent =
  | AnyFact
  | AnyDelta;

export const DEFAULT_LIMITS: Required<Limits> = {
  "turns": 50,
  "calls": 50,
  "tokens": null,
  "seconds": null,
  "cost": null,
  "attempts": 4,
  "doom_loop": true,
  "implicit_signals": true,
  "ceiling": 200,
  "retry_seconds": 600.0
};
