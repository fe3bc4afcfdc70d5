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
  /** Close the connection while nobody sees the page. It is opened again when the page is seen. */
  restsWhenHidden?: boolean;
  /** Called when the connection is closed to rest. */
  onRest?: () => void;
}

const FIRST_DELAY = 250;
const LONGEST_DELAY = 10_000;
/** The server sends a heartbeat at least every 15 seconds. Silence for this long means that the connection is dead. */
const SILENCE = 40_000;
/** A shorter silence is doubtful when the page is seen again. */
const DOUBTFUL = 20_000;
/** How long a page is hidden before its stream rests. */
const REST_AFTER = 10_000;

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

/** One stream, over all its connections. */
class Follower {
  private readonly options: StreamOptions;
  private lastId = "";
  private delay = FIRST_DELAY;
  private isStopped = false;
  private isResting = false;
  /** When anything last arrived, by the clock on the wall: a machine that sleeps stops all other clocks. */
  private heardAt = 0;
  private wake: () => void = () => undefined;
  private controller = new AbortController();

  constructor(options: StreamOptions) {
    this.options = options;
  }

  async follow(): Promise<void> {
    while (!this.isStopped) {
      if (this.isResting) {
        await new Promise<void>((resolve) => (this.wake = resolve));
        continue;
      }
      try {
        await this.read();
      } catch (error) {
        if (!this.isStopped && isRefusal(error)) return this.options.onRefused(error);
      }
      if (this.isStopped) return;
      if (this.isResting) {
        this.options.onRest?.();
        continue;
      }
      this.options.onBreak?.();
      await this.pause();
    }
  }

  stop(): void {
    this.isStopped = true;
    this.controller.abort();
    this.wake();
  }

  /** Close the connection until `check` is called. */
  rest(): void {
    this.isResting = true;
    this.controller.abort();
    this.wake();
  }

  /** The page is seen again, or the network is back: do not wait any longer, and do not trust a silent connection. */
  check(): void {
    this.isResting = false;
    this.wake();
    if (Date.now() - this.heardAt > DOUBTFUL) this.controller.abort();
  }

  /** Read from one connection until it ends. */
  private async read(): Promise<void> {
    const { options } = this;
    const controller = (this.controller = new AbortController());
    this.heardAt = Date.now();
    let silence = setTimeout(() => controller.abort(), SILENCE);
    try {
      const headers: Record<string, string> = { accept: "text/event-stream" };
      if (this.lastId) headers["last-event-id"] = this.lastId;
      const response = await fetch(options.url(this.lastId), { headers, credentials: "same-origin", signal: controller.signal });
      if (!response.ok) throw await readError(response);
      options.onOpen?.();
      const reader = (response.body ?? new ReadableStream<Uint8Array>()).getReader();
      const decoder = new TextDecoder();
      const parser = new EventParser();
      for (;;) {
        const { done, value } = await reader.read();
        if (done || controller.signal.aborted) return;
        clearTimeout(silence);
        silence = setTimeout(() => controller.abort(), SILENCE);
        this.heardAt = Date.now();
        this.delay = FIRST_DELAY;
        const events = parser.feed(decoder.decode(value, { stream: true }));
        if (events.length > 0) options.onEvents(events);
        this.lastId = events.findLast((event) => event.id)?.id ?? this.lastId;
      }
    } finally {
      clearTimeout(silence);
      controller.abort();
    }
  }

  /** Wait before the next connection, each time for longer. */
  private pause(): Promise<void> {
    const delay = this.delay * (0.75 + Math.random() / 2);
    this.delay = Math.min(this.delay * 2, LONGEST_DELAY);
    return new Promise((resolve) => {
      const timer = setTimeout(resolve, delay);
      this.wake = () => (clearTimeout(timer), resolve());
    });
  }
}

/** Whether the server refuses for good: not if it is only busy. */
function isRefusal(error: unknown): error is ApiError {
  return error instanceof ApiError && error.status >= 400 && error.status < 500 && error.status !== 429;
}

/** Start to read. Returns a function that stops it. */
export function openStream(options: StreamOptions): () => void {
  const follower = new Follower(options);
  let untilRest: ReturnType<typeof setTimeout> | undefined;
  const check = (): void => {
    clearTimeout(untilRest);
    if (document.visibilityState === "visible") follower.check();
    else if (options.restsWhenHidden) untilRest = setTimeout(() => follower.rest(), REST_AFTER);
  };
  addEventListener("online", check);
  document.addEventListener("visibilitychange", check);
  check();
  void follower.follow();
  return () => {
    clearTimeout(untilRest);
    removeEventListener("online", check);
    document.removeEventListener("visibilitychange", check);
    follower.stop();
  };
}
