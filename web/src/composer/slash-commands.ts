/** Commands after a slash: what the page does with the session, and custom commands, which become a message. */

import { api, sessionPath } from "../api.ts";
import type { CommandView, CompactView } from "../generated/api.ts";
import { askToDelete, startRename } from "../list/actions.ts";
import { navigate } from "../router.ts";
import { connection } from "../store/connection.ts";
import type { OpenSession } from "../store/open-session.ts";
import { sessions } from "../store/sessions.ts";
import { forkAt, isBusy, regenerate, showTab, undoRewind } from "../time/actions.ts";
import type { IconName } from "../ui/icon.tsx";
import { attempt, showToast } from "../ui/toasts.tsx";
import type { Suggestion } from "./completion.ts";

/** What was read last, by session. */
const custom = new Map<string, CommandView[]>();
const loads = new Map<string, Promise<void>>();

/** The commands that can be used now. */
export function listCommands(session: OpenSession, stop: () => void): Suggestion[] {
  const own = listOwn(session, stop);
  const names = new Set(own.map((one) => one.key));
  const found = custom.get(session.id) ?? [];
  return [...own, ...found.filter((one) => !names.has(one.name)).map(suggestCustom)];
}

/** The command that a message calls, and its arguments. Null for a message that is only a text. */
export async function parseCommand(
  session: OpenSession,
  text: string,
  stop: () => void,
): Promise<{ run: () => void } | { name: string; rest: string } | null> {
  const [, name = "", rest = ""] = /^\/([a-z0-9][a-z0-9_-]*)(?:\s+([\s\S]*))?$/.exec(text.trim()) ?? [];
  if (!name) return null;
  const own = listOwn(session, stop).find((one) => one.key === name);
  if (own?.run && !rest.trim()) return { run: own.run };
  if (!custom.has(session.id)) await loadCustom(session.id, false);
  return custom.get(session.id)?.some((one) => one.name === name) ? { name, rest } : null;
}

/** Without a connection, those that were read last are offered. */
export function loadCustom(id: string, isStart: boolean): Promise<void> {
  if (connection.peek() === "offline") return Promise.resolve();
  const load = (!isStart && loads.get(id)) || readCustom(id);
  loads.set(id, load);
  return load;
}

async function readCustom(id: string): Promise<void> {
  const found = await api.get<CommandView[]>(sessionPath(id, "/commands")).catch(() => null);
  if (found) custom.set(id, found);
}

function suggestCustom({ name, description, arguments_hint: hint, origin }: CommandView): Suggestion {
  const about = [description, hint, origin === "workspace" ? "of the workspace" : ""].filter(Boolean).join(" · ");
  return { key: name, icon: "term", label: `/${name}`, hint: about, text: `/${name}` };
}

/** They have the names that the terminal gives them. */
function listOwn(session: OpenSession, stop: () => void): Suggestion[] {
  const { id, view } = session;
  const entry = sessions.peek().get(id);
  const isIdle = !isBusy(view);
  const isStarted = view.items.length > 0;
  const commands: [isUsable: boolean, name: string, icon: IconName, about: string, run: () => void][] = [
    [view.run !== null, "stop", "stop", "Stop the run", stop],
    [isIdle && view.last?.can_continue === true, "continue", "play", "Continue after the limit or the stop", () => void goOn(id)],
    [isIdle && view.last !== null, "retry", "rew", "Answer the last message again", () => void regenerate(session)],
    [isIdle && isStarted, "compact", "think", "Summarize older turns to make room", () => void compact(id)],
    [isStarted, "fork", "fork", "Go on in a copy of this session", () => void forkAt(session, null)],
    [view.rewound > 0 && isIdle, "redo", "rew", "Take the last rewind back", () => void undoRewind(session)],
    [true, "changes", "pen", "Show the changed files", () => showTab("changes")],
    [true, "rewind", "time", "Open Time, to go back or to fork", () => showTab("time")],
    [entry !== undefined, "name", "pen", "Rename this session", () => entry && startRename(entry)],
    [true, "new", "plus", "Start another session", () => navigate({ page: "new" })],
    [entry !== undefined, "delete", "x", "Delete this session", () => entry && askToDelete(entry)],
  ];
  return commands
    .filter(([isUsable]) => isUsable)
    .map(([, key, icon, hint, run]) => ({ key, icon, label: `/${key}`, hint, text: `/${key}`, run }));
}

function goOn(id: string): Promise<boolean> {
  return attempt(() => api.post(sessionPath(id, "/continue")));
}

async function compact(id: string): Promise<void> {
  await attempt(async () => {
    const done = await api.post<CompactView>(sessionPath(id, "/compact"));
    if (!done.compacted) showToast("There is nothing to compact yet.");
  });
}
