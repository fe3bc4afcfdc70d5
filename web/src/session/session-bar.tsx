/** The bar of a session: its name, what it does, its tabs, and what can be done with it. */

import { useEffect, useState } from "preact/hooks";
import { api, sessionPath } from "../api.ts";
import { retryAt, statusOf } from "../fold.ts";
import type { SessionDetail, SessionView } from "../generated/api.ts";
import { useKeys } from "../keys.ts";
import { listSessionActions, LONGEST_NAME, rename } from "../list/actions.ts";
import { isPhone } from "../list/phone.ts";
import { describeStatus, nameOpenSession, nameWorkspace } from "../list/session-status.ts";
import { buildPath, navigate, type SessionTab } from "../router.ts";
import { connection } from "../store/connection.ts";
import { canSend } from "../store/me.ts";
import type { OpenSession } from "../store/open-session.ts";
import { putSession, sessions } from "../store/sessions.ts";
import { forkAt } from "../time/actions.ts";
import { everySecond } from "../ui/clock.ts";
import { formatClock, formatCost } from "../ui/format.ts";
import { Icon, type IconName } from "../ui/icon.tsx";
import { Menu, type MenuItem } from "../ui/menu.tsx";
import { useTitle } from "../ui/title.ts";
import type { RunView, View } from "../view.ts";

export interface BarProps {
  session: OpenSession;
  /** The view that is on the screen. */
  view: View;
  tab: SessionTab;
  at: number | null;
  isRailOpen: boolean;
  onRail: () => void;
}

export function SessionBar({ session, view, tab, at, isRailOpen, onRail }: BarProps) {
  session.version.value;
  const entry = useEntry(session.id);
  const fork = () => void forkAt(session, at);
  return (
    <header class="bar">
      {isPhone.value && (
        <button type="button" class="b bare ico" aria-label="Back to the sessions" onClick={() => navigate({ page: "home" })}>
          <Icon name="back" />
        </button>
      )}
      <div class="ti">
        <Title entry={entry} name={nameOpenSession(session, view.name)} />
        <Status session={session} view={view} entry={entry} isPast={at !== null} />
      </div>
      {!isPhone.value && <Tabs id={session.id} tab={tab} at={at} changed={view.changedFiles.length} />}
      <span class="sp" />
      {canSend.value && !isPhone.value && (
        <button type="button" class="b bare fork" title="Fork" onClick={fork}>
          <Icon name="fork" />
          Fork
        </button>
      )}
      <button type="button" class="b bare ico railbtn" aria-label="Plan, cost and files" aria-expanded={isRailOpen} onClick={onRail}>
        <Icon name="plan" />
      </button>
      <Menu label="More" items={listItems(session, entry, { tab, at }, fork)} />
    </header>
  );
}

/** The session's entry in the list. Old sessions are not in the list yet. */
function useEntry(id: string): SessionView | undefined {
  const entry = sessions.value.get(id);
  const isMissing = entry === undefined;
  useEffect(() => {
    if (isMissing) api.get<SessionDetail>(sessionPath(id)).then(putSession).catch(() => undefined);
  }, [id, isMissing]);
  return entry;
}

function Title({ entry, name }: { entry: SessionView | undefined; name: string }) {
  const [isEditing, setEditing] = useState(false);
  const mayEdit = canSend.value && entry !== undefined;
  useKeys([{ keys: "r", label: "Rename", where: "Session", isActive: () => mayEdit, run: () => setEditing(true) }]);
  useTitle(name);
  if (isEditing && entry) return <TitleField entry={entry} onEnd={() => setEditing(false)} />;
  return (
    <h1 title={name} onDblClick={() => mayEdit && setEditing(true)}>
      {name}
    </h1>
  );
}

function TitleField({ entry, onEnd }: { entry: SessionView; onEnd: () => void }) {
  const [text, setText] = useState(entry.name);
  const save = (): void => {
    onEnd();
    void rename(entry, text);
  };
  return (
    <>
      <h1 class="sr">{entry.name}</h1>
      <input
        class="title-field"
        aria-label="Name of the session"
        maxLength={LONGEST_NAME}
        value={text}
        ref={selectOnce}
        onInput={(event) => setText(event.currentTarget.value)}
        onBlur={save}
        onKeyDown={(event) => {
          if (event.key === "Enter") save();
          if (event.key === "Escape") (event.stopPropagation(), onEnd());
        }}
      />
    </>
  );
}

function selectOnce(field: HTMLInputElement | null): void {
  if (field && document.activeElement !== field) field.select();
}

interface StatusProps {
  session: OpenSession;
  view: View;
  entry: SessionView | undefined;
  isPast: boolean;
}

/** "Running, 1:52". On a phone, the workspace and the cost follow. */
function Status({ session, view, entry, isPast }: StatusProps) {
  session.version.value;
  const status = statusOf(view);
  const isOffline = connection.value === "offline";
  const told = describe(view, entry);
  const where = isPhone.value ? [entry ? nameWorkspace(entry.workspace) : "", formatCost(view.usage.cost)].filter(Boolean) : [];
  return (
    <span class="status">
      {!isPhone.value && <Icon name={told.icon} class={`sm ${told.ink}`} />}
      <span class={status === "waiting" ? "ask" : undefined}>
        {told.word}
        {view.run && status === "running" && (isPast || !isOffline) && <RunTime view={view} run={view.run} isPast={isPast} />}
        {isOffline && view.run && !isPast && ", as last seen"}
      </span>
      {where.length > 0 && <span class="m3">{`\u00a0· ${where.join(" · ")}`}</span>}
    </span>
  );
}

function describe(view: View, entry: SessionView | undefined): { icon: IconName; ink: string; word: string } {
  const status = statusOf(view);
  if (view.run?.isStopping) return { icon: "run", ink: "acc", word: "Stopping" };
  if (status === "running") return { icon: "run", ink: "acc", word: "Running" };
  if (status === "waiting") return { icon: "ask", ink: "", word: "Needs you" };
  if (status === "retrying") return { icon: "clock", ink: "m3", word: retryAt(view) ? "Waiting for the provider" : "Waiting" };
  switch (view.last?.reason) {
    case undefined:
      return entry ? describeStatus(entry) : { icon: "ring", ink: "m3", word: "Not started" };
    case "answered":
      return { icon: "check", ink: "m3", word: "Done" };
    case "failed":
      return { icon: "fail", ink: "bad", word: "Failed" };
    case "cancelled":
      return { icon: "stop", ink: "m3", word: "Stopped" };
    default:
      return { icon: "stop", ink: "m3", word: view.last?.reason.endsWith("_limit") ? "Stopped at a limit" : "Stopped" };
  }
}

function RunTime({ view, run, isPast }: { view: View; run: RunView; isPast: boolean }) {
  return <>, {formatClock((isPast ? view.at : everySecond.value) - run.startedAt)}</>;
}

const TABS: [tab: SessionTab, label: string][] = [["conversation", "Conversation"], ["changes", "Changes"], ["time", "Time"]];

function Tabs({ id, tab, at, changed }: { id: string; tab: SessionTab; at: number | null; changed: number }) {
  useKeys([
    {
      keys: "d", label: "Changes, and back", where: "Session",
      run: () => navigate({ page: "session", id, tab: tab === "changes" ? "conversation" : "changes", at }),
    },
  ]);
  return (
    <nav class="tabs" aria-label="Views of this session">
      {TABS.map(([one, label]) => (
        <a key={one} href={buildPath({ page: "session", id, tab: one, at })} {...(one === tab ? { "aria-current": "page" as const } : {})}>
          {label}
          {one === "changes" && changed > 0 && <span class="m3">{changed}</span>}
        </a>
      ))}
    </nav>
  );
}

function listItems(session: OpenSession, entry: SessionView | undefined, { tab, at }: Pick<BarProps, "tab" | "at">, fork: () => void): MenuItem[] {
  const { id } = session;
  const items: MenuItem[] = [];
  if (isPhone.value) {
    const icons = { conversation: "think", changes: "pen", time: "time" } as const;
    for (const [one, label] of TABS) {
      if (one !== tab) items.push({ label, icon: icons[one], run: () => navigate({ page: "session", id, tab: one, at }) });
    }
    if (canSend.value) items.push({ label: "Fork", icon: "fork", run: fork });
  }
  if (entry) items.push(...listSessionActions(entry, "dialog"));
  const exporting: MenuItem = { label: "Export as one HTML file", icon: "out", run: () => downloadExport(id) };
  const danger = items.findIndex((item) => item.isDanger);
  return items.toSpliced(danger < 0 ? items.length : danger, 0, exporting);
}

function downloadExport(id: string): void {
  const link = document.createElement("a");
  link.href = sessionPath(id, "/export?format=html");
  link.download = `${id}.html`;
  link.click();
}
