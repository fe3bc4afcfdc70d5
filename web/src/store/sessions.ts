/** The list of sessions and the open questions of all sessions, kept live by one stream. */

import { batch, computed, signal } from "@preact/signals";
import { api } from "../api.ts";
import { openStream, type ServerEvent } from "../event-stream.ts";
import type { PendingQuestion, SessionPageView, SessionView } from "../generated/api.ts";
import { noteOffline, noteOnline } from "./connection.ts";
import { noteLoginEnded } from "./login.ts";
import { canShare, shareWork } from "./shared-stream.ts";

const PAGE = 100;

/** All sessions that the page knows, by id. A new Map at each change. */
export const sessions = signal<ReadonlyMap<string, SessionView>>(new Map());
export const questions = signal<ReadonlyMap<string, PendingQuestion[]>>(new Map());
export const areSessionsLoaded = signal(false);
/** The cursor of the next page of older sessions. Empty when all are here. */
const olderCursor = signal("");
export const hasOlder = computed(() => olderCursor.value !== "");

/** Newest change first. */
export const sortedSessions = computed(() => [...sessions.value.values()].sort((a, b) => b.updated_at - a.updated_at));
/** Open questions of all sessions. The longest waiting comes first. */
export const openQuestions = computed(() =>
  [...questions.value.values()].flat().filter((one) => one.kind !== "client_call").sort((a, b) => a.asked_at - b.asked_at),
);

/** What the tab that reads the stream tells all tabs. */
type News =
  | { kind: "list"; page: SessionPageView; open: PendingQuestion[] }
  | { kind: "events"; events: ServerEvent[] }
  | { kind: "offline" }
  | { kind: "refused"; status: number };

async function loadList(): Promise<News> {
  const [page, open] = await Promise.all([
    api.get<SessionPageView>("/v1/sessions", { limit: PAGE }),
    api.get<PendingQuestion[]>("/v1/approvals"),
  ]);
  return { kind: "list", page, open };
}

function takeList(page: SessionPageView, open: PendingQuestion[]): void {
  const older = new Map(sessions.value);
  const last = page.cursor ? (page.sessions.at(-1)?.updated_at ?? 0) : 0;
  // What was loaded from further pages stays, and what is missing in the span of this page was deleted.
  for (const [id, one] of older) if (one.updated_at >= last) older.delete(id);
  for (const one of page.sessions) older.set(one.id, one);
  sessions.value = older;
  if (!areSessionsLoaded.value) olderCursor.value = page.cursor;
  questions.value = Map.groupBy(open, (one) => one.session_id);
  areSessionsLoaded.value = true;
}

export async function loadOlder(): Promise<void> {
  if (!olderCursor.value) return;
  const page = await api.get<SessionPageView>("/v1/sessions", { limit: PAGE, cursor: olderCursor.value });
  const all = new Map(sessions.value);
  for (const one of page.sessions) if (!all.has(one.id)) all.set(one.id, one);
  sessions.value = all;
  olderCursor.value = page.cursor;
}

/** Take a session's entry from an answer of the server, before the stream brings it. */
export function putSession(view: SessionView): void {
  sessions.value = new Map(sessions.value).set(view.id, view);
}

export function dropSession(id: string): void {
  const all = new Map(sessions.value);
  all.delete(id);
  sessions.value = all;
  setQuestions(id, []);
}

export function setQuestions(id: string, open: PendingQuestion[]): void {
  const all = new Map(questions.value);
  if (open.length > 0) all.set(id, open);
  else all.delete(id);
  questions.value = all;
}

function takeEvents(events: ServerEvent[]): void {
  const all = new Map(sessions.value);
  for (const { event, data } of events) {
    if (event === "session") {
      const view = JSON.parse(data) as SessionView;
      all.set(view.id, view);
    } else if (event === "removed") {
      const { id } = JSON.parse(data) as { id: string };
      all.delete(id);
      setQuestions(id, []);
    } else if (event === "questions") {
      const one = JSON.parse(data) as { session_id: string; questions: PendingQuestion[] };
      setQuestions(one.session_id, one.questions);
    }
  }
  sessions.value = all;
}

/** The page sees the questions of a session together with the session. */
function takeNews(news: News): void {
  batch(() => applyNews(news));
}

function applyNews(news: News): void {
  switch (news.kind) {
    case "list":
      noteOnline();
      return takeList(news.page, news.open);
    case "events":
      noteOnline();
      return takeEvents(news.events);
    case "offline":
      return noteOffline();
    case "refused":
      return news.status === 401 ? noteLoginEnded() : noteOffline();
  }
}

/** Read the stream for all tabs. What arrives while the list is loaded is newer than the list. */
function readStream(tell: (news: News) => void): () => void {
  let waiting: ServerEvent[] | null = null;
  const load = async (): Promise<void> => {
    const held: ServerEvent[] = (waiting = []);
    const news = await loadList().catch((): News => ({ kind: "offline" }));
    if (waiting !== held) return; // the connection broke meanwhile, and the list is loaded again
    waiting = null;
    tell(news);
    if (held.length > 0) tell({ kind: "events", events: held });
  };
  const stop = openStream({
    url: () => "/v1/sessions/stream",
    onOpen: () => void load(),
    onEvents: (events) => (waiting ? waiting.push(...events) : tell({ kind: "events", events })),
    onBreak: () => {
      waiting = null;
      tell({ kind: "offline" });
    },
    onRefused: (error) => tell({ kind: "refused", status: error.status }),
    restsWhenHidden: !canShare(),
  });
  return () => {
    waiting = null;
    stop();
  };
}

/** Follow all sessions. Returns a function that stops it. */
export function followSessions(): () => void {
  const stop = shareWork("treadle-sessions", readStream, takeNews);
  // A tab that does not lead hears only changes.
  if (canShare()) loadList().then(takeNews, noteOffline);
  return stop;
}
