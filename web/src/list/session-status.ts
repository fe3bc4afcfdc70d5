/** What a session is doing, as an icon and words. */

import type { PendingQuestion, SessionView } from "../generated/api.ts";
import type { OpenSession } from "../store/open-session.ts";
import { sessions } from "../store/sessions.ts";
import { formatTime } from "../ui/format.ts";
import { spellHidden } from "../ui/hidden-text.ts";
import type { IconName } from "../ui/icon.tsx";

/** Needs you: a question is open. Waiting: the run goes on later by itself, or a client must answer. */
export type Standing = "asks" | "running" | "waiting" | "failed" | "stopped" | "done" | "new";

export interface StatusText {
  standing: Standing;
  icon: IconName;
  /** A class for the colour of the icon. */
  ink: string;
  word: string;
}

export function findStanding(session: SessionView): Standing {
  if (session.asks > 0) return "asks";
  switch (session.status) {
    case "running":
      return session.retry_at === null ? "running" : "waiting";
    case "waiting":
      return "waiting";
    case "answered":
      return "done";
    case "failed":
      return "failed";
    case "stopped":
    case "cancelled":
      return "stopped";
    default:
      return session.retry_at === null ? "new" : "waiting";
  }
}

export function describeStatus(session: SessionView): StatusText {
  const standing = findStanding(session);
  switch (standing) {
    case "asks":
      return { standing, icon: "ask", ink: "attn", word: "Needs you" };
    case "running":
      return { standing, icon: "run", ink: "acc", word: "Running" };
    case "waiting": {
      const until = session.retry_at === null ? "" : ` until ${formatTime(session.retry_at)}`;
      return { standing, icon: "clock", ink: "m3", word: `Waiting${until}` };
    }
    case "failed":
      return { standing, icon: "fail", ink: "bad", word: "Failed" };
    case "stopped":
      return { standing, icon: "stop", ink: "m3", word: session.status === "stopped" ? "Stopped at a limit" : "Stopped" };
    case "done":
      return { standing, icon: "check", ink: "m3", word: "Done" };
    case "new":
      return { standing, icon: "ring", ink: "m3", word: "Not started" };
  }
}

/** What a session asks for, in short: "shell", "1 question", "3 approvals". */
export function describeAsks(open: readonly PendingQuestion[]): string {
  const [first] = open;
  if (!first) return "";
  if (open.length === 1) return first.kind === "approval" ? first.tool : "1 question";
  return open.every((one) => one.kind === "approval") ? `${open.length} approvals` : `${open.length} questions`;
}

/** The name to show. A name is anybody's text, so what would not show is spelled out. */
export function nameSession({ name, first_words = "" }: Pick<SessionView, "name"> & Partial<Pick<SessionView, "first_words">>): string {
  return spellHidden(name || first_words) || "Session without a name";
}

/** The name of a session that is open, and that the list may not have. */
export function nameOpenSession({ id, view }: OpenSession, name = view.name): string {
  const entry = sessions.value.get(id);
  return name || !entry ? nameSession({ name }) : nameSession(entry);
}

/** The last folder of a workspace. */
export function nameWorkspace(path: string): string {
  return path.replace(/[/\\]+$/, "").split(/[/\\]/).at(-1) ?? "";
}

export function isHelper(session: SessionView): boolean {
  return Boolean(session.parent && session.parent_call);
}

export function isActive(standing: Standing): boolean {
  return standing === "asks" || standing === "running" || standing === "waiting";
}
