/** The sessions around a session: those that it was forked from, and the forks of them all. */

import { useEffect, useState } from "preact/hooks";
import { api, sessionPath } from "../api.ts";
import type { SessionPageView, SessionView } from "../generated/api.ts";
import { sessions } from "../store/sessions.ts";

/** A session that left the path of the session on the screen. */
export interface Branch {
  session: SessionView;
  /** The last position that both have. */
  seq: number;
  /** 1 for a branch of the path, 2 for a branch of such a branch, and so on. */
  depth: number;
  /** It is what the path itself left. */
  isOrigin: boolean;
}

const MOST_ANCESTORS = 20;
const MOST_BRANCHES = 200;

/** The branches of a session's path, in the order in which they left it. */
export function listBranches(id: string, all: ReadonlyMap<string, SessionView>): Branch[] {
  const forks = Map.groupBy([...all.values()].filter((one) => one.parent && !one.parent_call), (one) => one.parent ?? "");
  const found: Branch[] = [];
  const seen = new Set<string>([id]);
  const addForks = (of: string, depth: number, until: number): void => {
    const sorted = (forks.get(of) ?? []).toSorted((a, b) => a.parent_seq - b.parent_seq || a.created_at - b.created_at);
    for (const session of sorted) {
      if (seen.has(session.id) || session.parent_seq > until || found.length >= MOST_BRANCHES) continue;
      seen.add(session.id);
      found.push({ session, seq: session.parent_seq, depth, isOrigin: false });
      addForks(session.id, depth + 1, Infinity);
    }
  };
  addForks(id, 1, Infinity);
  let child = all.get(id);
  for (let depth = 0; child?.parent && !child.parent_call && depth < MOST_ANCESTORS; depth++) {
    const origin = all.get(child.parent);
    if (!origin || seen.has(origin.id)) break;
    seen.add(origin.id);
    found.push({ session: origin, seq: child.parent_seq, depth: 1, isOrigin: true });
    addForks(origin.id, 2, Infinity);
    child = origin;
  }
  return sortBranches(found);
}

/** By where the branch left the path. What left a branch stays under it. */
function sortBranches(found: readonly Branch[]): Branch[] {
  const groups: Branch[][] = [];
  for (const branch of found) {
    if (branch.depth === 1) groups.push([branch]);
    else groups.at(-1)?.push(branch);
  }
  return groups.toSorted((a, b) => (a[0]?.seq ?? 0) - (b[0]?.seq ?? 0)).flat();
}

/** All that is known of a session's relatives: what the list of sessions has, and what the server is asked for. */
export function useBranches(id: string): Branch[] {
  const [loaded, setLoaded] = useState<ReadonlyMap<string, SessionView>>(new Map());
  useEffect(() => {
    let isGone = false;
    void loadRelatives(id).then((found) => !isGone && setLoaded(found), () => undefined);
    return () => void (isGone = true);
  }, [id]);
  return listBranches(id, new Map([...loaded, ...sessions.value]));
}

async function loadRelatives(id: string): Promise<Map<string, SessionView>> {
  const found = new Map<string, SessionView>();
  let next: string | null = id;
  for (let depth = 0; next && !found.has(next) && depth < MOST_ANCESTORS; depth++) {
    const [one, children]: [SessionView, SessionPageView] = await Promise.all([
      api.get<SessionView>(sessionPath(next)),
      api.get<SessionPageView>("/v1/sessions", { parent: next, limit: 100 }),
    ]);
    found.set(next, one);
    for (const child of children.sessions) if (!found.has(child.id)) found.set(child.id, child);
    next = one.parent_call ? null : one.parent;
  }
  return found;
}
