/** One session as the page follows it: its facts, the view of them, and what streams in live. */

import { batch, signal, type Signal } from "@preact/signals";
import { openStream, type ServerEvent } from "../event-stream.ts";
import { api, buildUrl, sessionPath } from "../api.ts";
import { applyFact, createView, foldTo } from "../fold.ts";
import type { SessionView } from "../generated/api.ts";
import type { AnyDelta, AnyEvent, AnyFact } from "../generated/events.ts";
import type { View } from "../view.ts";
import { addDelta, clearLive, createLive, type Live } from "./live.ts";
import { noteOnline } from "./connection.ts";

/** How long the page may work on facts before it lets the browser draw, in milliseconds. */
const SLICE = 8;
/** The same while nothing is drawn yet. */
const LOADING_SLICE = 40;

/** How long to wait for a frame before facts are applied without one, in milliseconds. */
const LONGEST_FRAME = 200;

export type Loading = "loading" | "ready" | "missing";

export class OpenSession {
  readonly id: string;
  readonly facts: AnyFact[] = [];
  /** The present. It is changed in place; `version` grows at each change. */
  readonly view: View = createView();
  readonly live: Live = createLive();
  /** Grows when `view` changes. Read it in whatever draws the view. */
  readonly version: Signal<number> = signal(0);
  /** Grows when only the live text changes. */
  readonly liveVersion: Signal<number> = signal(0);
  readonly loading: Signal<Loading> = signal("loading");
  readonly isConnected: Signal<boolean> = signal(false);
  readonly error: Signal<string> = signal("");
  private waiting: AnyEvent[] = [];
  /** How far the session had come when it was opened. It is shown from there on. Null until the server has said so. */
  private end: number | null = null;
  private isScheduled = false;
  private readonly stop: () => void;

  constructor(id: string) {
    this.id = id;
    void this.findEnd();
    this.stop = openStream({
      url: () => buildUrl(sessionPath(id, "/events"), { after: this.lastSeq }),
      onOpen: () => {
        noteOnline();
        this.isConnected.value = true;
      },
      onEvents: (events) => this.take(events),
      onBreak: () => {
        this.isConnected.value = false;
        this.dropLive();
      },
      restsWhenHidden: true,
      onRest: () => this.dropLive(),
      onRefused: (error) => {
        this.isConnected.value = false;
        this.error.value = error.message;
        if (error.status === 401) forgetSession(this); // it is opened again after the next login
        this.loading.value = error.status === 404 ? "missing" : this.loading.value;
      },
    });
  }

  /** The position of the last fact that has arrived. */
  private get lastSeq(): number {
    return (this.waiting.findLast(isFact) ?? this.facts.at(-1))?.seq ?? 0;
  }

  /** The view at a position, as a copy that never changes. */
  viewAt(seq: number): View {
    return foldTo(this.facts, seq);
  }

  close(): void {
    this.stop();
  }

  /** The next connection begins with all of the reply that is being written. */
  private dropLive(): void {
    this.waiting = this.waiting.filter(isFact);
    clearLive(this.live);
    this.liveVersion.value++;
  }

  private async findEnd(): Promise<void> {
    try {
      this.end = (await api.get<SessionView>(sessionPath(this.id))).seq;
    } catch {
      this.end = 0; // the stream says why, or brings what there is
    }
    this.schedule();
  }

  private take(events: ServerEvent[]): void {
    let last = this.lastSeq;
    for (const { data } of events) {
      if (!data) continue;
      const event = JSON.parse(data) as AnyEvent;
      if (!isFact(event)) this.waiting.push(event);
      else if (event.seq > last) {
        last = event.seq;
        this.waiting.push(event);
      }
    }
    this.schedule();
  }

  private schedule(): void {
    if (this.isScheduled) return;
    this.isScheduled = true;
    const run = (): void => {
      cancelAnimationFrame(frame);
      clearTimeout(timer);
      this.apply();
    };
    const frame = requestAnimationFrame(run);
    // A hidden page draws no frames, but it must not fall behind.
    const timer = setTimeout(run, LONGEST_FRAME);
  }

  /** Apply what has arrived, for at most one slice of time, once per frame. */
  private apply(): void {
    this.isScheduled = false;
    const end = performance.now() + (this.loading.value === "loading" ? LOADING_SLICE : SLICE);
    let used = 0;
    let hasFacts = false;
    for (const event of this.waiting) {
      if (isFact(event)) {
        this.facts.push(event);
        applyFact(this.view, event);
        clearLive(this.live, event);
        hasFacts = true;
      } else addDelta(this.live, event);
      used++;
      if ((used & 31) === 0 && performance.now() > end) break;
    }
    this.waiting = used === this.waiting.length ? [] : this.waiting.slice(used);
    batch(() => {
      if (hasFacts) this.version.value++;
      this.liveVersion.value++;
      if (this.end !== null && this.facts.length > 0 && this.view.seq >= this.end) this.loading.value = "ready";
    });
    if (this.waiting.length > 0) this.schedule();
  }
}

function isFact(event: AnyEvent): event is AnyFact {
  return "seq" in event;
}

export type { AnyDelta };

/** The session that is on the screen. */
export const openedSession = signal<OpenSession | null>(null);

function forgetSession(session: OpenSession): void {
  if (openedSession.value === session) openedSession.value = null;
}

export function showSession(id: string | null): void {
  if (openedSession.value?.id === id) return;
  openedSession.value?.close();
  openedSession.value = id === null ? null : new OpenSession(id);
}
