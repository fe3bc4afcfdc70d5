/** What the list shows on this device: filters, the search, and the row that the keys act on. */

import { computed, effect, signal } from "@preact/signals";
import { api, ApiError } from "../api.ts";
import type { SearchHitView, SessionPageView, SessionView } from "../generated/api.ts";
import { route } from "../router.ts";
import { hasOlder, questions, sessions, sortedSessions } from "../store/sessions.ts";
import { everyHalfMinute } from "../ui/clock.ts";
import { buildEntries, type Entry, type Filters, NO_FILTERS } from "./groups.ts";
import { nameSession } from "./session-status.ts";

const KEY = "treadle.filters";

function readFilters(): Filters {
  try {
    const stored = JSON.parse(localStorage.getItem(KEY) ?? "{}") as Partial<Filters>;
    return { ...NO_FILTERS, ...stored };
  } catch {
    return NO_FILTERS;
  }
}

export const filters = signal<Filters>(readFilters());
effect(() => localStorage.setItem(KEY, JSON.stringify(filters.value)));

export function setFilters(change: Partial<Filters>): void {
  filters.value = { ...filters.value, ...change };
}

export const hasFilters = computed(() => Object.entries(NO_FILTERS).some(([name, none]) => filters.value[name as keyof Filters] !== none));

/** Sessions whose helpers are all shown. */
export const unfolded = signal<ReadonlySet<string>>(new Set());

export const currentId = computed(() => (route.value.page === "session" ? route.value.id : ""));

/** The agent of most sessions. */
export const usualAgent = computed(() => {
  const counts = new Map<string, number>();
  for (const { agent, parent_call } of sessions.value.values()) if (!parent_call) counts.set(agent, (counts.get(agent) ?? 0) + 1);
  return [...counts].sort((a, b) => b[1] - a[1])[0]?.[0] ?? "";
});

/** The list without a search. */
export const entries = computed<Entry[]>(() =>
  buildEntries(sortedSessions.value, {
    filters: filters.value,
    now: everyHalfMinute.value,
    current: currentId.value,
    unfolded: unfolded.value,
    askedAt: (id) => questions.value.get(id)?.[0]?.asked_at ?? Infinity,
  }),
);

export const query = signal("");

export interface Found {
  id: string;
  /** The position of the passage. Null when only the name was found. */
  seq: number | null;
  /** Marks of the matches are U+0002 and U+0003. */
  snippet: string;
  name: string;
  /** Another passage of the session above. */
  isMore: boolean;
}

export interface SearchResult {
  query: string;
  found: Found[];
  error: string;
}

/** The answer to the last search. It is shown until the next answer comes. */
export const searchResult = signal<SearchResult | null>(null);
const TYPING_PAUSE = 150;
const MOST_FOUND = 40;
/** Passages of one session. */
const MOST_PASSAGES = 3;
const MOST_BEFORE = 30;

/** Search the names and the text of all sessions. */
export async function searchText(text: string): Promise<SearchResult> {
  const wanted = text.trim();
  try {
    const [named, hits] = await Promise.all([
      findByName(wanted),
      api.get<SearchHitView[]>("/v1/search", { q: wanted, limit: MOST_FOUND }),
    ]);
    return { query: wanted, found: mergeFound(named, hits), error: "" };
  } catch (error) {
    return { query: wanted, found: await findByName(wanted, false), error: error instanceof ApiError ? error.message : String(error) };
  }
}

/** The server is asked only when the list does not have all sessions. */
async function findByName(wanted: string, mayAsk = true): Promise<Found[]> {
  const lower = wanted.toLowerCase();
  const known = sortedSessions.value.filter((one) => one.name.toLowerCase().includes(lower));
  const others: SessionView[] = [];
  if (mayAsk && hasOlder.value) {
    const page = await api.get<SessionPageView>("/v1/sessions", { q: wanted, limit: MOST_FOUND });
    others.push(...page.sessions.filter((one) => !sessions.value.has(one.id)));
  }
  const found = [...known, ...others].slice(0, MOST_FOUND);
  return found.map((one) => ({ id: one.id, seq: null, snippet: "", name: nameSession(one), isMore: false }));
}

/** Each session with its best passages, those that were found by name first. */
function mergeFound(named: Found[], hits: SearchHitView[]): Found[] {
  const groups = new Map<string, Found[]>(named.map((one) => [one.id, []]));
  for (const { session_id: id, seq, snippet, name } of hits) {
    const group = groups.get(id) ?? [];
    const one = { id, seq, snippet: shortenStart(snippet), name: nameSession({ name }), isMore: group.length > 0 };
    if (group.length < MOST_PASSAGES) groups.set(id, [...group, one]);
  }
  const byName = new Map(named.map((one) => [one.id, one]));
  return [...groups].flatMap(([id, group]) => (group.length > 0 ? group : (byName.get(id) ?? [])));
}

/** Two lines of a passage are shown, so the first match must be near its start. */
function shortenStart(snippet: string): string {
  const from = snippet.indexOf("\u0002") - MOST_BEFORE;
  if (from <= 0) return snippet;
  const space = snippet.indexOf(" ", from);
  return `…${snippet.slice(space < 0 || space > from + MOST_BEFORE ? from : space + 1)}`;
}

/** Search while the person types. Start it while the list is on the screen. */
export function followQuery(): () => void {
  return effect(() => {
    const text = query.value;
    if (text.trim() === "") {
      searchResult.value = null;
      return;
    }
    const timer = setTimeout(async () => {
      const result = await searchText(text);
      if (query.value === text) searchResult.value = result;
    }, TYPING_PAUSE);
    return () => clearTimeout(timer);
  });
}
