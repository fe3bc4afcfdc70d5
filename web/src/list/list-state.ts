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

/** Search the names and the text of all sessions. */
export async function searchText(text: string): Promise<SearchResult> {
  const wanted = text.trim();
  try {
    const [named, hits] = await Promise.all([
      findByName(wanted),
      api.get<SearchHitView[]>("/v1/search", { q: wanted, limit: MOST_FOUND }),
    ]);
    const passages = hits.map((hit) => ({ id: hit.session_id, seq: hit.seq, snippet: hit.snippet, name: hit.name }));
    return { query: wanted, found: mergeFound(named, passages), error: "" };
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
  return found.map((one) => ({ id: one.id, seq: null, snippet: "", name: nameSession(one) }));
}

/** A session that was found by its name shows its first passage too. */
function mergeFound(named: Found[], passages: Found[]): Found[] {
  const rest = [...passages];
  const merged = named.map((one) => {
    const index = rest.findIndex((hit) => hit.id === one.id);
    return index < 0 ? one : { ...one, ...rest.splice(index, 1)[0] };
  });
  return [...merged, ...rest];
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
