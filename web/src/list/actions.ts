/** What a person does with a session: rename, pin, archive, delete. Every device sees it at once. */

import { signal } from "@preact/signals";
import { api, sessionPath } from "../api.ts";
import type { SessionView } from "../generated/api.ts";
import { navigate, openSession, route } from "../router.ts";
import { canSend } from "../store/me.ts";
import { dropSession, putSession } from "../store/sessions.ts";
import { copyText } from "../ui/copy-button.tsx";
import type { MenuItem } from "../ui/menu.tsx";
import { attempt, showToast } from "../ui/toasts.tsx";
import { findStanding, isActive, nameSession } from "./session-status.ts";

/** Longer names are refused. */
export const LONGEST_NAME = 200;

/** The session whose name is a field, in the list or in a dialog. */
export const renaming = signal<{ id: string; where: "list" | "dialog" } | null>(null);
/** The session that a dialog asks about before it is deleted. */
export const deleting = signal<SessionView | null>(null);

type Change = Partial<Pick<SessionView, "name" | "pinned" | "archived">>;

async function change(session: SessionView, body: Change): Promise<boolean> {
  putSession({ ...session, ...body });
  const isDone = await attempt(async () => {
    const answer = await api.patch<SessionView>(sessionPath(session.id), body);
    putSession({ ...session, ...body, ...answer });
  });
  if (!isDone) putSession(session);
  return isDone;
}

export function startRename(session: SessionView, where: "list" | "dialog" = "dialog"): void {
  if (canSend.value) renaming.value = { id: session.id, where };
}

export async function rename(session: SessionView, name: string): Promise<void> {
  renaming.value = null;
  const text = name.trim();
  if (text === "" || text === session.name) return;
  await change(session, { name: text });
}

export async function togglePin(session: SessionView): Promise<void> {
  if (canSend.value) await change(session, { pinned: !session.pinned });
}

export async function toggleArchive(session: SessionView): Promise<void> {
  if (!canSend.value) return;
  const archived = !session.archived;
  if (!(await change(session, { archived }))) return;
  const undo = (): void => void change({ ...session, archived }, { archived: !archived });
  showToast(archived ? `Archived “${nameSession(session)}”` : `Back in the list: “${nameSession(session)}”`, { undo });
}

export function askToDelete(session: SessionView): void {
  if (canSend.value) deleting.value = session;
}

export async function deleteNow(session: SessionView): Promise<void> {
  deleting.value = null;
  if (!(await attempt(() => api.delete(sessionPath(session.id))))) return;
  if (route.value.page === "session" && route.value.id === session.id) navigate({ page: "home" }, { replace: true });
  dropSession(session.id);
  showToast(`Deleted “${nameSession(session)}”`);
}

/** The menu of a session, in its row and on its page. A token that may only view has no entries but the links. */
export function listSessionActions(session: SessionView, where: "list" | "dialog"): MenuItem[] {
  const items: MenuItem[] = [];
  if (canSend.value) {
    items.push(
      { label: "Rename", icon: "pen", keys: "R", run: () => startRename(session, where) },
      { label: session.pinned ? "Unpin" : "Pin", icon: "pin", keys: "B", run: () => void togglePin(session) },
      { label: session.archived ? "Unarchive" : "Archive", icon: "box", keys: "E", run: () => void toggleArchive(session) },
    );
  }
  if (session.parent !== null) items.push({ label: "Open where it came from", icon: "fork", run: () => openParent(session) });
  items.push({ label: "Copy the address", icon: "copy", run: () => void copyAddress(session.id) });
  if (canSend.value) items.push(buildDelete(session));
  return items;
}

function buildDelete(session: SessionView): MenuItem {
  const isUnderWay = isActive(findStanding(session));
  return {
    label: "Delete…",
    icon: "x",
    isDanger: true,
    isDisabled: isUnderWay,
    hint: isUnderWay ? "Works when the run has ended" : "",
    run: () => askToDelete(session),
  };
}

function openParent(session: SessionView): void {
  if (session.parent !== null) openSession(session.parent, session.parent_call ? null : session.parent_seq || null);
}

async function copyAddress(id: string): Promise<void> {
  if (await copyText(`${location.origin}/s/${encodeURIComponent(id)}`)) showToast("The address is copied");
}
