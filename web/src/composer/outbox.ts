/**
 * Messages on their way to the server, in the order in which they were written. They are kept until the server has
 * them, also over a reload. Each has a key, by which the server knows a message that arrives twice.
 */

import { effect, signal } from "@preact/signals";
import { api, ApiError, sessionPath } from "../api.ts";
import type { Attachment, NewMessage } from "../generated/api.ts";
import { connection } from "../store/connection.ts";
import { login, noteLoginEnded } from "../store/login.ts";
import { canSend, me } from "../store/me.ts";
import { showToast } from "../ui/toasts.tsx";
import { forgetDrafts } from "./drafts.ts";

export type SendMode = "queue" | "follow_up";

export interface Outgoing {
  key: string;
  /** Who wrote it. Nobody else who logs in here sends it. */
  by: string;
  sessionId: string;
  text: string;
  attachments: Attachment[];
  mode: SendMode;
  /** A custom command. `text` are its arguments. */
  command: string;
  /** Why the server refused the message. Empty while it is on its way. */
  error: string;
  /** Why the server could not take it yet, although it can be reached. */
  trouble: string;
  /** "sent" means that the server has it, and that the page waits for the fact. */
  state: "new" | "sending" | "sent";
  /** Large files do not fit into the browser's store: the message waits only as long as the page is open. */
  isKept: boolean;
}

const KEY = "treadle.outbox";
/** How long to wait before a request that failed is tried again, in milliseconds. */
const PAUSE = 3000;
/** How long a delivered message may wait for its fact, in milliseconds. */
const LONGEST_WAIT = 5000;

export const outbox = signal<readonly Outgoing[]>(readKept());
/** Sessions whose messages are being delivered. */
const busy = new Set<string>();
let timer: ReturnType<typeof setTimeout> | undefined;

export function send(message: Pick<Outgoing, "sessionId" | "text" | "attachments" | "mode" | "command">): void {
  const by = me.peek()?.name ?? "";
  put([...outbox.value, { ...message, key: createKey(), by, error: "", trouble: "", state: "new", isKept: true }]);
  deliver();
}

/** Change a message that has not arrived, or send one again that was refused. */
export function changeOutgoing(key: string, text: string): void {
  put(outbox.value.map((one) => (one.key === key ? { ...one, text, error: "", state: "new" } : one)));
  deliver();
}

export function dropOutgoing(key: string): void {
  put(outbox.value.filter((one) => one.key !== key));
}

/** Deliver what waits, when the server can be reached. Returns a function that stops it. */
export function startOutbox(): () => void {
  const onStorage = (event: StorageEvent): void => {
    // Another tab has delivered messages, or written some.
    if (event.key === KEY) outbox.value = [...readKept(), ...outbox.value.filter((one) => one.state === "sent" || !one.isKept)];
  };
  addEventListener("storage", onStorage);
  const stop = effect(() => {
    if (me.value === null) forgetAll();
    else if (connection.value === "online" && login.value === "done" && canSend.value) deliver();
  });
  return () => {
    stop();
    clearTimeout(timer);
    removeEventListener("storage", onStorage);
  };
}

/** After a log out, nothing that was written stays in the browser. */
function forgetAll(): void {
  put([]);
  forgetDrafts();
}

function mayGo(one: Outgoing): boolean {
  return !one.error && one.state !== "sent" && one.by === me.peek()?.name;
}

function deliver(): void {
  clearTimeout(timer);
  const waiting = outbox.peek().filter(mayGo);
  for (const id of new Set(waiting.map((one) => one.sessionId))) if (!busy.has(id)) void deliverTo(id);
}

/** Deliver the messages of one session, one after the other. */
async function deliverTo(sessionId: string): Promise<void> {
  busy.add(sessionId);
  try {
    for (;;) {
      const next = outbox.peek().find((one) => one.sessionId === sessionId && mayGo(one));
      if (!next || !(await deliverOne(next))) return;
    }
  } finally {
    busy.delete(sessionId);
  }
}

/** Returns whether the next message may follow. */
async function deliverOne(message: Outgoing): Promise<boolean> {
  change(message.key, { state: "sending" });
  try {
    await post(message);
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    return handleFailure(message, error);
  }
  if (isCurrent(message)) {
    change(message.key, { state: "sent" });
    setTimeout(() => dropOutgoing(message.key), LONGEST_WAIT);
  }
  return true;
}

/** Returns whether the next message may follow. */
function handleFailure(message: Outgoing, error: ApiError): boolean {
  const { key } = message;
  if (error.kind === "key_reused") {
    dropOutgoing(key);
    showToast("The message had arrived before it was changed.");
    return true;
  }
  const isRefused = error.status >= 400 && error.status < 500 && ![401, 408, 429].includes(error.status);
  // What was changed meanwhile is another message.
  if (isRefused && isCurrent(message)) change(key, { error: error.message, state: "new" });
  else change(key, { trouble: error.status ? error.message : "", state: "new" });
  if (error.status === 401) noteLoginEnded();
  else if (!isRefused) timer = setTimeout(deliver, PAUSE);
  return isRefused;
}

function isCurrent(message: Outgoing): boolean {
  return outbox.peek().some((one) => one.key === message.key && one.text === message.text);
}

async function post({ sessionId, text, attachments, mode, command, key }: Outgoing): Promise<void> {
  const headers = { "Idempotency-Key": key };
  if (command) {
    await api.post(sessionPath(sessionId, `/commands/${encodeURIComponent(command)}`), { arguments: text, mode }, headers);
    return;
  }
  const body: NewMessage = { content: text, attachments, mode };
  await api.post(`${sessionPath(sessionId, "/messages")}?wait=0`, body, headers);
}

function change(key: string, changes: Partial<Outgoing>): void {
  put(outbox.peek().map((one) => (one.key === key ? { ...one, ...changes } : one)));
}

function put(all: readonly Outgoing[]): void {
  const kept = all.filter((one) => one.state !== "sent");
  const small = kept.filter((one) => one.attachments.length === 0);
  const fitting = [kept, small].find(keep) ?? [];
  outbox.value = all.map((one) => (one.isKept === fitting.includes(one) ? one : { ...one, isKept: !one.isKept }));
}

/** Returns whether they fit. */
function keep(all: readonly Outgoing[]): boolean {
  try {
    if (all.length > 0) localStorage.setItem(KEY, JSON.stringify(all));
    else localStorage.removeItem(KEY);
    return true;
  } catch {
    return false;
  }
}

function readKept(): Outgoing[] {
  try {
    const kept = JSON.parse(localStorage.getItem(KEY) ?? "[]") as Outgoing[];
    return kept.map((one) => ({ ...one, state: "new", isKept: true }));
  } catch {
    return [];
  }
}

/** `crypto.randomUUID` exists only in pages that came over HTTPS. */
function createKey(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return `page-${Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("")}`;
}
