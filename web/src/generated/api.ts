/** Written by scripts/write_web_types.py from the OpenAPI document. Do not edit: run `make types`. */

export interface AgentView {
  name: string;
  description: string;
  model: string;
  tools: string[];
  max_iterations: number;
}

export interface AnswersBody {
  answers: string[];
}

/** With `keep`, the rule of the question is also saved, and holds in this workspace from the next run on. */
export interface ApprovalAnswer {
  decision: "allow" | "deny";
  scope?: "call" | "tool" | "pattern" | "session";
  comment?: string;
  digest?: string;
  keep?: boolean;
}

/** An image, a file or a text that goes with a message.
 * 
 * `data` is base64. An image may have a `url` instead, and a text its `text`. Without a `type`, an address or an
 * image's `media_type` makes it an image, and everything else is a file. */
export interface Attachment {
  type?: "" | "image" | "image_url" | "file" | "text";
  name?: string;
  media_type?: string;
  data?: string;
  url?: string;
  image_url?: ImageAddress | string | null;
  text?: string;
}

export interface CallResult {
  output: string;
  ok?: boolean;
}

export interface CancelledView {
  cancelled: boolean;
  outcome: RunOutcome | null;
}

/** New metadata in place of all that there was. */
export interface ChangeConversation {
  metadata?: Record<string, string>;
}

/** What to change in a session: marks at once, its access from the next call on, and the rest from the next run. */
export interface ChangeSession {
  name?: string | null;
  agent?: string;
  model?: string;
  limits?: LimitsBody | null;
  web?: boolean | null;
  pinned?: boolean | null;
  archived?: boolean | null;
  access?: "plan" | "read-only" | "sandbox" | "full" | null;
}

/** How a file differs, and the calls that changed it. `others` means that somebody else changed it since.
 * 
 * The kinds `committed`, `moved` and `staged` are about git: `path` is then such as `.git/refs/heads/main`, and `diff`
 * names where it was and is, and lists commits as `ID SUBJECT`. */
export interface ChangedFile {
  path: string;
  kind: "added" | "modified" | "deleted" | "committed" | "moved" | "staged";
  diff: string;
  calls: string[];
  others: boolean;
}

/** Checkpoints in their order. With `more`, the last `seq` is the `after` of the next page. */
export interface CheckpointPage {
  checkpoints: CheckpointView[];
  more: boolean;
}

/** A position to go on from. `kind` says which of the fields after `turns` are set. */
export interface CheckpointView {
  seq: number;
  kind: "after_user_input" | "before_llm" | "before_tool_calls" | "after_tool_calls";
  turns: number;
  user_input: Record<string, unknown>[];
  messages: Record<string, unknown>[];
  tools: Record<string, unknown>[];
  calls: Record<string, unknown>[];
  results: Record<string, unknown>[];
}

export interface CommandBody {
  arguments?: string;
  mode?: "queue" | "interrupt" | "follow_up";
}

export interface CommandSent {
  message_id: string;
}

/** A custom command: a text of the user or of the workspace that becomes a message. */
export interface CommandView {
  name: string;
  description: string;
  arguments_hint: string;
  origin: "user" | "workspace";
}

/** `undo` reverts the last compaction: the model sees the older turns again. */
export interface CompactBody {
  undo?: boolean;
}

export interface CompactView {
  compacted: boolean;
  tokens_before: number;
  tokens_after: number;
}

/** The configuration of the default agent, and what the operator allows.
 * 
 * `access` is the most that a session may have. `hosts` are those that commands reach without a question; `*` stands
 * for all public ones. Every workspace is in one of the `workspaces`. */
export interface ConfigView {
  provider: string;
  model: string;
  max_iterations: number;
  skill_autogen: boolean;
  workspaces: string[];
  access: "plan" | "read-only" | "sandbox" | "full";
  web: boolean;
  hosts: string[];
}

/** What fills the model's window, in tokens. `window` and `free` are null when the window is unknown. */
export interface ContextView {
  window: number | null;
  used: number;
  system: number;
  tools: number;
  skills: number;
  files: number;
  history: number;
  free: number | null;
  estimated: boolean;
}

export interface DeletedView {
  id: string;
  object: string;
  deleted: boolean;
}

/** What a queued message is replaced by. */
export interface EditedMessage {
  content?: string;
  attachments?: Attachment[];
}

/** What went wrong, and what to do about it. */
export interface ErrorDetail {
  type: string;
  message: string;
  hint: string;
}

export interface ForkBody {
  after?: number | null;
}

/** Paths in the workspace, the best first. That of a folder ends in a slash. */
export interface FoundFiles {
  files: string[];
}

/** What a token narrows: the tier and the patterns of every session that is created with it. */
export interface GrantView {
  tier: string;
  tools: string[];
  approve: string[];
  ask: string[];
  forbid: string[];
}

export interface HealthView {
  status: string;
}

/** The address of an image, as OpenAI's clients write it. */
export interface ImageAddress {
  url: string;
}

/** A page of items. `last_id` as `after` fetches the next page. */
export interface ItemList {
  data: Record<string, unknown>[];
  first_id: string | null;
  last_id: string | null;
  has_more: boolean;
  object: string;
}

/** The limits of one run. Missing limits are the agent's. */
export interface LimitsBody {
  turns?: number | null;
  calls?: number | null;
  tokens?: number | null;
  seconds?: number | null;
  cost?: number | null;
  retry_seconds?: number | null;
}

/** How far a model is loaded. `fraction` is from 0 to 1, or null when it is unknown. */
export interface LoadProgress {
  fraction: number | null;
  message: string;
}

export interface LoginBody {
  token: string;
}

/** An MCP server: `status` is starting, up, restarting, down or closed, and `error` the last one. */
export interface McpView {
  name: string;
  status: string;
  error: string;
  tools: string[];
}

/** Who is logged in, what the person may do, and the version of the server. */
export interface MeView {
  name: string;
  rights: ("view" | "send" | "approve")[];
  version: string;
}

export interface MemoryName {
  id: string;
}

export interface MemoryText {
  content: string;
}

/** A memory. `scope` is its workspace; an empty scope means every workspace.
 * 
 * `session_id` is the session that it comes from, and empty when a person added it. It is `untrusted` if that session
 * had read text that others wrote. */
export interface MemoryView {
  id: string;
  content: string;
  kind: "fact" | "preference" | "procedure";
  scope: string;
  session_id: string;
  created_at: number;
  untrusted: boolean;
}

/** The answer to a message. */
export interface MessageAnswer {
  reply: string;
  session: SessionView;
  outcome: RunOutcome;
  message_id: string;
}

/** One message. `partial` marks a reply that was broken off. */
export interface MessageView {
  role: "user" | "assistant";
  content: string;
  at: number;
  seq: number;
  partial: boolean;
}

/** All models. Anthropic's clients read `first_id`, `last_id` and `has_more`. */
export interface ModelList {
  object: string;
  data: ModelView[];
  has_more: boolean;
  first_id: string | null;
  last_id: string | null;
}

export interface ModelName {
  model: string;
}

/** What the sessions of one model have cost. An empty name stands for the model of the agent. */
export interface ModelUsage {
  model: string;
  sessions: number;
  turns: number;
  cost: number;
}

/** A model or an agent, with the fields that OpenAI's and Anthropic's clients expect.
 * 
 * Requests may use a model that is `loaded`. `progress` is there while it loads; `error` says why it cannot be used.
 * `reachable` and `why` are those of the last check: `GET /v1/models?check=true` checks again. */
export interface ModelView {
  id: string;
  object: string;
  created: number;
  owned_by: string;
  loaded: boolean;
  window: number | null;
  state: "loading" | "loaded" | "failed" | "unloaded";
  progress: LoadProgress | null;
  error: string;
  reachable: boolean;
  why: string;
  type: string;
  created_at: string;
  display_name: string;
}

/** A conversation to create, with its first items. */
export interface NewConversation {
  items?: Record<string, unknown>[];
  metadata?: Record<string, string>;
}

/** Items to add to a conversation. */
export interface NewItems {
  items: Record<string, unknown>[];
}

export interface NewMemory {
  content: string;
  kind?: "fact" | "preference" | "procedure";
  scope?: string;
}

/** A message for a session. It steers a current run, or stops it first with `interrupt`.
 * 
 * A `follow_up` waits until the current run has answered, and then gets a run of its own. */
export interface NewMessage {
  content?: string;
  attachments?: Attachment[];
  mode?: "queue" | "interrupt" | "follow_up";
}

/** The settings of a new session. */
export interface NewSession {
  agent?: string;
  model?: string;
  name?: string;
  workspace?: string;
  limits?: LimitsBody | null;
  approve?: string[];
  forbid?: string[];
  web?: boolean | null;
  access?: "plan" | "read-only" | "sandbox" | "full" | null;
}

export interface NextRunBody {
  limits?: LimitsBody | null;
}

/** A simple command of a compound one. `verdict` is what the policy says of it alone, and `why` the reason. */
export interface PartView {
  text: string;
  safety: "safe" | "caution" | "destructive";
  verdict: "allowed" | "asks" | "denied";
  why: string;
}

/** What a run waits for: a person, or with the kind `client_call` the client's result of a call.
 * 
 * `options` are the suggested answers to each of `questions`, and `strict` says where only these count. With `once`,
 * a yes holds for this call alone. `during` names a call that runs and asks for more. */
export interface PendingQuestion {
  id: string;
  session_id: string;
  call_id: string;
  kind: "approval" | "input" | "client_call";
  tool: string;
  arguments: Record<string, unknown>;
  safety: string;
  why: string;
  rule: string;
  digest: string;
  questions: string[];
  options: string[][];
  strict: boolean[];
  once: boolean;
  asked_at: number;
  expires_at: number | null;
  during: string;
}

/** What decides an answer. `network` is empty for a tool that runs no command.
 * 
 * `hidden` says that the arguments have characters that do not show. Show those spelled out. */
export interface PreviewView {
  question: PendingQuestion;
  parts: PartView[];
  diff: string;
  folder: string;
  network: string;
  hidden: boolean;
}

/** The body of every error. */
export interface Problem {
  error: ErrorDetail;
}

export interface ProposalAnswer {
  accept: boolean;
}

/** What was decided. `path` is the file of an accepted skill. */
export interface ProposalDecision {
  id: string;
  status: "accepted" | "declined";
  path: string;
}

/** A skill that was drafted from finished work. It is not active until a person accepts it. */
export interface ProposalView {
  id: string;
  name: string;
  description: string;
  content: string;
  diff: string;
  path: string;
  why: string;
  created_at: number;
}

export interface ResolvedView {
  resolved: boolean;
}

/** Go on from the checkpoint `after`, in this session or in a fork. `files` also rewinds the files to it. */
export interface ResumeBody {
  after: number;
  fork?: boolean;
  files?: boolean;
  limits?: LimitsBody | null;
}

/** Revert the file to what it was at `to`, or before the session. `force` also discards changes of others. */
export interface RevertBody {
  path: string;
  to?: number;
  dry_run?: boolean;
  force?: boolean;
}

/** Go back to a position. `force` also overwrites files and moves branches that somebody else changed since. */
export interface RewindBody {
  seq: number;
  what?: "files" | "conversation" | "both";
  dry_run?: boolean;
  force?: boolean;
}

/** What a rewind did, or would do: each diff leads from now to then. `done` is false for a dry run. */
export interface RewindView {
  to: number;
  what: "files" | "conversation" | "both";
  changes: ChangedFile[];
  skipped: UnchangedFile[];
  done: boolean;
  seq: number;
}

/** An answer that was kept. `workspace` is empty for a rule that holds everywhere. */
export interface RuleView {
  id: string;
  pattern: string;
  decision: "allow" | "deny";
  workspace: string;
  saved_at: number;
  by: string;
}

/** A run was started. Watch the events after `after`. */
export interface RunAccepted {
  session_id: string;
  after: number;
}

/** How a run went. `answered` is the only success. `waiting` means that somebody must answer first.
 * 
 * `partial_answer` is the text of a run that ended without an answer. */
export interface RunOutcome {
  status: "answered" | "stopped" | "failed" | "cancelled" | "waiting";
  reason: string;
  turns: number;
  calls: number;
  input_tokens: number;
  output_tokens: number;
  cost: number;
  can_continue: boolean;
  error: string;
  partial_answer: string;
  pending: PendingQuestion[];
}

/** A place in a transcript. In the `snippet` U+0002 and U+0003 stand around each word that was found. */
export interface SearchHitView {
  session_id: string;
  name: string;
  seq: number;
  snippet: string;
}

/** A session with its messages and open questions, and how its last run ended.
 * 
 * `web` says whether its next run may use the web tools: the operator, the project and the session allow them.
 * `context` and `web` are null when its model is not available. While its run waits for its provider, `retry_at` is
 * when the model is asked again, and `retry_reason` why that is necessary. */
export interface SessionDetail {
  id: string;
  name: string;
  agent: string;
  status: string;
  seq: number;
  turns: number;
  cost: number;
  workspace: string;
  created_at: number;
  updated_at: number;
  parent: string | null;
  retry_at: number | null;
  model: string;
  pinned: boolean;
  archived: boolean;
  parent_call: string;
  parent_seq: number;
  asks: number;
  first_words: string;
  messages: MessageView[];
  pending: PendingQuestion[];
  last_run: RunOutcome | null;
  context: ContextView | null;
  web: boolean | null;
  retry_reason: string;
}

export interface SessionPageView {
  sessions: SessionView[];
  cursor: string;
}

/** One entry in a list of sessions. `retry_at` is when a run that is parked asks its model again.
 * 
 * `parent_call` is the call of `parent` that started a helper. It is empty for a fork. `parent_seq` is the position
 * in the parent. `asks` counts the open questions to a person. `first_words` are those of the first message, as long
 * as the session has no name. */
export interface SessionView {
  id: string;
  name: string;
  agent: string;
  status: string;
  seq: number;
  turns: number;
  cost: number;
  workspace: string;
  created_at: number;
  updated_at: number;
  parent: string | null;
  retry_at: number | null;
  model: string;
  pinned: boolean;
  archived: boolean;
  parent_call: string;
  parent_seq: number;
  asks: number;
  first_words: string;
}

export interface SimpleAnswer {
  approved: boolean;
  digest?: string;
}

export interface SkillSwitch {
  enabled: boolean;
}

/** A skill. `triggers` are the words and patterns that activate it, or `always`. */
export interface SkillView {
  id: string;
  description: string;
  triggers: string[];
  origin: string;
  enabled: boolean;
}

/** A link that logs a browser in once, within ten minutes. */
export interface TicketView {
  path: string;
  expires_in: number;
}

export interface TokenCount {
  input_tokens: number;
}

/** A token without its value. `current` marks the one of this request. */
export interface TokenView {
  name: string;
  rights: ("view" | "send" | "approve")[];
  grant: GrantView | null;
  current: boolean;
}

export interface ToolView {
  name: string;
  description: string;
  class: string;
  schema: Record<string, unknown>;
  agents: string[];
}

/** A file or git ref that the rewind did not change, and why. */
export interface UnchangedFile {
  path: string;
  why: string;
}

export interface UndoBody {
  dry_run?: boolean;
  force?: boolean;
}

/** What all sessions have cost, without those that were deleted. The most expensive model comes first. */
export interface UsageView {
  sessions: number;
  turns: number;
  cost: number;
  models: ModelUsage[];
}
