/** One row of the list of sessions. */

import { useEffect, useRef } from "preact/hooks";
import type { SessionView } from "../generated/api.ts";
import { buildPath } from "../router.ts";
import { connection } from "../store/connection.ts";
import { canSend } from "../store/me.ts";
import { questions, sessions } from "../store/sessions.ts";
import { everyHalfMinute } from "../ui/clock.ts";
import { formatAge, formatCost } from "../ui/format.ts";
import { Icon } from "../ui/icon.tsx";
import { Menu } from "../ui/menu.tsx";
import { listSessionActions, LONGEST_NAME, rename, renaming, toggleArchive, togglePin } from "./actions.ts";
import { Marked } from "./marked.tsx";
import { describeAsks, describeStatus, isHelper, nameSession, nameWorkspace } from "./session-status.ts";

interface SessionRowProps {
  session: SessionView;
  isCurrent: boolean;
  isKid?: boolean;
  isAfterKid?: boolean;
  isOld?: boolean;
  /** The agent of most sessions. Only other agents are named. */
  usualAgent?: string;
  /** The pointer or the focus is on the row, so its buttons are there. */
  isActive?: boolean;
  /** A passage that a search found, and where. */
  hit?: { seq: number | null; snippet: string };
}

export function SessionRow(props: SessionRowProps) {
  const { session, isCurrent, isKid, hit } = props;
  if (renaming.value?.id === session.id && renaming.value.where === "list") return <RenamingRow session={session} isKid={isKid} />;
  const { icon, ink } = describeStatus(session);
  const open = questions.value.get(session.id) ?? [];
  const at = open[0]?.asked_at ?? session.updated_at;
  const href = buildPath({ page: "session", id: session.id, tab: "conversation", at: hit?.seq ?? null });
  const kind = `row${isKid ? " kid" : ""}${props.isAfterKid ? " next" : ""}${props.isOld ? " old" : ""}`;
  return (
    <>
      <a class={kind} href={href} data-session={session.id} {...(isCurrent ? { "aria-current": "page" } : {})}>
        <Icon name={icon} class={ink} />
        <span class="t cut" title={nameSession(session)}>
          {nameSession(session)}
        </span>
        <span class="a">
          {session.pinned && <Icon name="pin" class="sm pinned" />}
          {!isKid && formatAge(at, everyHalfMinute.value)}
        </span>
        <StatusLine session={session} usualAgent={props.usualAgent ?? session.agent} />
        <span class="c">{!isKid && session.cost > 0 && formatCost(session.cost)}</span>
        {hit?.snippet && (
          <span class="hit">
            <Marked text={hit.snippet} />
          </span>
        )}
      </a>
      {props.isActive && !hit && <RowActions session={session} />}
    </>
  );
}

function StatusLine({ session, usualAgent }: { session: SessionView; usualAgent: string }) {
  const { standing, word } = describeStatus(session);
  const details = [describeWhere(session)];
  if (standing === "asks") details.unshift(describeAsks(questions.value.get(session.id) ?? []));
  if (session.agent !== usualAgent && !isHelper(session)) details.push(session.agent);
  if (session.archived) details.push("archived");
  if (connection.value === "offline" && ["asks", "running", "waiting"].includes(standing)) details.unshift("as last seen");
  const shown = details.filter(Boolean).join(" · ");
  return (
    <span class="m cut" title={session.workspace}>
      <span class={standing === "asks" ? "ask" : ""}>{word}</span>
      {shown && ` · ${shown}`}
    </span>
  );
}

function describeWhere(session: SessionView): string {
  if (isHelper(session)) return session.agent;
  if (!session.parent) return nameWorkspace(session.workspace);
  const parent = sessions.value.get(session.parent);
  return parent ? `fork of ${nameSession(parent)}` : "fork";
}

function RowActions({ session }: { session: SessionView }) {
  const pin = session.pinned ? "Unpin" : "Pin";
  const archive = session.archived ? "Unarchive" : "Archive";
  return (
    <span class="ra">
      {canSend.value && !isHelper(session) && (
        <>
          <button type="button" class="b bare ico" title={`${pin} (B)`} aria-label={pin} onClick={() => void togglePin(session)}>
            <Icon name="pin" class="sm" />
          </button>
          <button type="button" class="b bare ico" title={`${archive} (E)`} aria-label={archive} onClick={() => void toggleArchive(session)}>
            <Icon name="box" class="sm" />
          </button>
        </>
      )}
      <Menu label="More" items={listSessionActions(session, "list")} />
    </span>
  );
}

function RenamingRow({ session, isKid }: { session: SessionView; isKid: boolean | undefined }) {
  const field = useRef<HTMLInputElement>(null);
  useEffect(() => field.current?.select(), []);
  const leave = (): void => {
    renaming.value = null;
    requestAnimationFrame(() => document.querySelector<HTMLElement>(`[data-session="${CSS.escape(session.id)}"]`)?.focus());
  };
  const onKeyDown = (event: KeyboardEvent): void => {
    if (event.key === "Escape") leave();
    else if (event.key === "Enter") {
      void rename(session, field.current?.value ?? "");
      leave();
    } else return;
    event.preventDefault();
    event.stopPropagation();
  };
  return (
    <div class={`row renaming${isKid ? " kid" : ""}`}>
      <Icon name="pen" class="m3" />
      <div class="field">
        <input
          ref={field}
          aria-label="Name of the session"
          maxLength={LONGEST_NAME}
          defaultValue={session.name}
          onKeyDown={onKeyDown}
          onBlur={() => renaming.value && void rename(session, field.current?.value ?? "")}
        />
      </div>
    </div>
  );
}
