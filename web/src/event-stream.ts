/** Reads server-sent events, and connects again with Last-Event-ID after a break, sleep or restart of the server. */

import { ApiError, readError } from "./api.ts";

export interface ServerEvent {
  id: string;
  event: string;
  data: string;
}

export interface StreamOptions {
  /** The address for a connection after `lastId`, which is empty at first. */
  url: (lastId: string) => string;
  /** Events that arrived together. */
  onEvents: (events: ServerEvent[]) => void;
  /** Called after each successful connection. */
  onOpen?: () => void;
  /** Called when the connection breaks or cannot be made. It is tried again. */
  onBreak?: () => void;
  /** Called when the server refuses for good (4xx). It is not tried again. */
  onRefused: (error: ApiError) => void;
}

const FIRST_DELAY = 250;
const LONGEST_DELAY = 10_000;
/** The server sends a heartbeat at least every 15 seconds. Silence for this long means that the connection is dead. */
const SILENCE = 40_000;

/** Splits a byte stream into events. Comments are heartbeats. */
export class EventParser {
  private rest = "";
  private id = "";
  private event = "";
  private data: string[] = [];

  feed(text: string): ServerEvent[] {
    const found: ServerEvent[] = [];
    const lines = (this.rest + text).split("\n");
    this.rest = lines.pop() ?? "";
    for (const line of lines) {
      if (line === "") {
        if (this.data.length > 0 || this.id) found.push({ id: this.id, event: this.event, data: this.data.join("\n") });
        this.id = this.event = "";
        this.data = [];
        continue;
      }
      const colon = line.indexOf(":");
      if (colon === 0) continue;
      const name = colon < 0 ? line : line.slice(0, colon);
      const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
      if (name === "id") this.id = value;
      else if (name === "event") this.event = value;
      else if (name === "data") this.data.push(value);
    }
    return found;
  }
}

/** Start to read. Returns a function that stops it. */
export function openStream(options: StreamOptions): () => void {
  let lastId = "";
  let delay = FIRST_DELAY;
  let isStopped = false;
  let wake: () => void = () => undefined;
  let controller = new AbortController();

  const read = async (): Promise<void> => {
    controller = new AbortController();
    let silence = setTimeout(() => controller.abort(), SILENCE);
    try {
      const headers: Record<string, string> = { accept: "text/event-stream" };
      if (lastId) headers["last-event-id"] = lastId;
      const response = await fetch(options.url(lastId), { headers, credentials: "same-origin", signal: controller.signal });
      if (!response.ok) throw await readError(response);
      delay = FIRST_DELAY;
      options.onOpen?.();
      const reader = (response.body ?? new ReadableStream<Uint8Array>()).getReader();
      const decoder = new TextDecoder();
      const parser = new EventParser();
      for (;;) {
        const { done, value } = await reader.read();
        if (done) return;
        clearTimeout(silence);
        silence = setTimeout(() => controller.abort(), SILENCE);
        const events = parser.feed(decoder.decode(value, { stream: true }));
        if (isStopped) return;
        if (events.length > 0) options.onEvents(events);
        lastId = events.findLast((event) => event.id)?.id ?? lastId;
      }
    } finally {
      clearTimeout(silence);
      controller.abort();
    }
  };

  const follow = async (): Promise<void> => {
    while (!isStopped) {
      try {
        await read();
      } catch (error) {
        const isRefused = error instanceof ApiError && error.status >= 400 && error.status < 500 && error.status !== 429;
        if (isRefused && !isStopped) return options.onRefused(error);
      }
      if (isStopped) return;
      options.onBreak?.();
      await new Promise<void>((resolve) => {
        const timer = setTimeout(resolve, delay * (0.75 + Math.random() / 2));
        wake = () => (clearTimeout(timer), resolve());
      });
      delay = Math.min(delay * 2, LONGEST_DELAY);
    }
  };

  const wakeNow = (): void => {
    if (document.visibilityState === "visible") wake();
  };
  addEventListener("online", wakeNow);
  document.addEventListener("visibilitychange", wakeNow);
  void follow();
  return () => {
    isStopped = true;
    removeEventListener("online", wakeNow);
    document.removeEventListener("visibilitychange", wakeNow);
    controller.abort();
    wake();
  };
}
