/** Puts sessions into the groups of the list, with helpers below the session that started them. Pure functions. */

import type { SessionView } from "../generated/api.ts";
import { findStanding, isActive, isHelper } from "./session-status.ts";

export interface Filters {
  status: "" | "asks" | "running" | "pinned" | "failed" | "done";
  agent: string;
  workspace: string;
  isArchived: boolean;
}

export const NO_FILTERS: Filters = { status: "", agent: "", workspace: "", isArchived: false };

export type Entry =
  | { kind: "head"; key: string; label: string }
  | { kind: "row"; key: string; session: SessionView; isKid: boolean; isAfterKid: boolean; isOld: boolean }
  | { kind: "more"; key: string; parent: string; count: number };

export interface GroupOptions {
  filters: Filters;
  /** Seconds since 1970. */
  now: number;
  /** The session on the screen. Its finished helpers are shown. */
  current: string;
  /** Sessions whose helpers are all shown. */
  unfolded: ReadonlySet<string>;
  /** When the oldest open question of a session was asked. */
  askedAt: (id: string) => number;
}

const SHOWN_HELPERS = 4;

interface Family {
  session: SessionView;
  helpers: SessionView[];
}

/** `sessions` are in order: the newest change first. */
export function buildEntries(sessions: readonly SessionView[], options: GroupOptions): Entry[] {
  const groups = new Map<string, Family[]>();
  for (const family of findFamilies(sessions)) {
    if (!matchesFilters(family, options.filters)) continue;
    const label = nameGroup(family, options.now);
    const group = groups.get(label);
    if (group) group.push(family);
    else groups.set(label, [family]);
  }
  const asks = groups.get(ASKS);
  asks?.sort((a, b) => findAskedAt(a, options) - findAskedAt(b, options));
  // Rows of running sessions keep their places although all of them change all the time.
  groups.get(RUNNING)?.sort((a, b) => b.session.created_at - a.session.created_at);
  const leading = [ASKS, RUNNING, PINNED].filter((label) => groups.has(label));
  const labels = [...leading, ...[...groups.keys()].filter((label) => !leading.includes(label))];
  return labels.flatMap((label) => [
    { kind: "head" as const, key: `head ${label}`, label },
    ...(groups.get(label) ?? []).flatMap((family) => listFamily(family, label, options)),
  ]);
}

const ASKS = "Needs you";
const RUNNING = "Running";
const PINNED = "Pinned";

function findFamilies(sessions: readonly SessionView[]): Family[] {
  const known = new Set(sessions.map((one) => one.id));
  const helpers = new Map<string, SessionView[]>();
  const families: Family[] = [];
  for (const session of sessions) {
    if (isHelper(session) && session.parent !== null && known.has(session.parent)) {
      const siblings = helpers.get(session.parent);
      if (siblings) siblings.push(session);
      else helpers.set(session.parent, [session]);
    } else families.push({ session, helpers: [] });
  }
  for (const family of families) family.helpers = collectHelpers(family.session.id, helpers);
  return families;
}

/** Helpers of helpers hang below the same session. The oldest comes first, as in the conversation. */
function collectHelpers(id: string, helpers: ReadonlyMap<string, SessionView[]>): SessionView[] {
  return (helpers.get(id) ?? []).toReversed().flatMap((one) => [one, ...collectHelpers(one.id, helpers)]);
}

function matchesFilters({ session, helpers }: Family, filters: Filters): boolean {
  if (session.archived !== filters.isArchived) return false;
  if (filters.agent && session.agent !== filters.agent) return false;
  if (filters.workspace && session.workspace !== filters.workspace) return false;
  const standings = [session, ...helpers].map(findStanding);
  switch (filters.status) {
    case "":
      return true;
    case "pinned":
      return session.pinned;
    case "running":
      return standings.some((one) => one === "running" || one === "waiting");
    case "asks":
      return standings.includes("asks");
    default:
      return standings[0] === filters.status;
  }
}

function nameGroup({ session, helpers }: Family, now: number): string {
  const standings = [session, ...helpers].map(findStanding);
  if (standings.includes("asks")) return ASKS;
  if (standings.some(isActive)) return RUNNING;
  if (session.pinned) return PINNED;
  return nameDay(session.updated_at, now);
}

/** Today, Yesterday, the name of a month, and with the year when it is not this year. */
export function nameDay(at: number, now: number): string {
  const day = new Date(at * 1000);
  const today = new Date(now * 1000);
  const start = new Date(today.getFullYear(), today.getMonth(), today.getDate());
  if (day >= start) return "Today";
  start.setDate(start.getDate() - 1);
  if (day >= start) return "Yesterday";
  const isThisYear = day.getFullYear() === today.getFullYear();
  return day.toLocaleDateString(undefined, isThisYear ? { month: "long" } : { month: "long", year: "numeric" });
}

function findAskedAt({ session, helpers }: Family, options: GroupOptions): number {
  return Math.min(...[session, ...helpers].map((one) => options.askedAt(one.id)));
}

function listFamily({ session, helpers }: Family, label: string, options: GroupOptions): Entry[] {
  const isOld = ![ASKS, RUNNING, PINNED].includes(label);
  const entries: Entry[] = [{ kind: "row", key: session.id, session, isKid: false, isAfterKid: false, isOld }];
  const shown = chooseHelpers(session, helpers, options);
  for (const [index, helper] of shown.entries()) {
    const isHelperOld = !isActive(findStanding(helper));
    entries.push({ kind: "row", key: helper.id, session: helper, isKid: true, isAfterKid: index > 0, isOld: isHelperOld });
  }
  const count = helpers.length - shown.length;
  if (count > 0) entries.push({ kind: "more", key: `more ${session.id}`, parent: session.id, count });
  return entries;
}

/** Active helpers, and some that have ended while the session is under way or on the screen. */
function chooseHelpers(session: SessionView, helpers: SessionView[], options: GroupOptions): SessionView[] {
  if (options.unfolded.has(session.id)) return helpers;
  const isOpen = options.current === session.id || helpers.some((one) => one.id === options.current);
  const isUnderWay = isActive(findStanding(session));
  let room = isOpen || isUnderWay ? SHOWN_HELPERS : 0;
  return helpers.filter((one) => isActive(findStanding(one)) || one.id === options.current || room-- > 0);
}
