/** Messages that no turn has taken yet: those in the server's queue, and those on their way to it. */

import { useEffect, useRef, useState } from "preact/hooks";
import { api, ApiError, sessionPath } from "../api.ts";
import { readText } from "../fold-state.ts";
import type { EditedMessage } from "../generated/api.ts";
import { connection } from "../store/connection.ts";
import { me } from "../store/me.ts";
import type { OpenSession } from "../store/open-session.ts";
import { Icon } from "../ui/icon.tsx";
import { attempt, showToast } from "../ui/toasts.tsx";
import { VisibleText } from "../ui/visible-text.tsx";
import { isOfInputMethod } from "./message-field.tsx";
import { isOwnText, listAttachments } from "./message-parts.ts";
import { changeOutgoing, dropOutgoing, outbox, type Outgoing } from "./outbox.ts";

/** A run that is about to start takes a message at once. Only what waits longer is shown, in milliseconds. */
const MOMENT = 800;

interface Waiting {
  key: string;
  text: string;
  attached: number;
  label: string;
  /** Why it does not go on. */
  error?: string;
  /** What the person should know meanwhile. */
  note?: string;
  edit: (text: string) => Promise<boolean>;
  remove: () => void;
}

export function Queue({ session }: { session: OpenSession }) {
  session.version.value;
  const { view } = session;
  const known = new Set(view.queue.map((one) => one.fact.key));
  const outgoing = outbox.value.filter((one) => one.sessionId === session.id && one.by === me.value?.name && !known.has(one.key) && !hasArrived(session, one));
  const waiting = [...view.queue.map((one) => fromQueue(session, one)), ...outgoing.map(fromOutgoing)];
  const isPassing = view.run === null && !view.isHeld && connection.value === "online" && outgoing.every((one) => !one.error);
  const isLate = useLate(isPassing && waiting.length > 0);
  if (waiting.length === 0 || (isPassing && !isLate)) return null;
  return (
    <>
      {view.isHeld && view.queue.length > 0 && <p class="queue-note m3 t12">{describeHeld(session)}</p>}
      <ul class="queue" aria-label="Waiting to be taken">
        {waiting.map((one) => (
          <WaitingRow key={one.key} waiting={one} />
        ))}
      </ul>
    </>
  );
}

function describeHeld({ view }: OpenSession): string {
  const why = view.last?.reason === "cancelled" ? "The run was stopped." : "The run ended early.";
  return `${why} These wait until you write or continue.`;
}

function useLate(isOn: boolean): boolean {
  const [isLate, setLate] = useState(false);
  useEffect(() => {
    setLate(false);
    if (!isOn) return undefined;
    const timer = setTimeout(() => setLate(true), MOMENT);
    return () => clearTimeout(timer);
  }, [isOn]);
  return isOn && isLate;
}

/** Whether a turn has taken the message already. */
function hasArrived(session: OpenSession, { key }: Outgoing): boolean {
  return session.facts.some((fact) => fact.type === "message_received" && fact.key === key);
}

function fromQueue(session: OpenSession, message: OpenSession["view"]["queue"][number]): Waiting {
  const path = sessionPath(session.id, `/messages/${encodeURIComponent(message.id)}`);
  const attachments = listAttachments(message.parts);
  return {
    key: message.id,
    text: readText(message.parts.filter(isOwnText)),
    attached: attachments.length,
    label: message.mode === "follow_up" ? "After this run" : "Next turn",
    edit: (text) => change(() => api.put(path, { content: text, attachments } satisfies EditedMessage)),
    remove: () => void change(() => api.delete(path)),
  };
}

async function change(request: () => Promise<unknown>): Promise<boolean> {
  return attempt(async () => {
    try {
      await request();
    } catch (error) {
      if (!(error instanceof ApiError) || error.status !== 409) throw error;
      showToast("A turn has taken this message already.");
    }
  });
}

function fromOutgoing(message: Outgoing): Waiting {
  const isOffline = connection.value === "offline";
  const later = message.mode === "follow_up" ? "After this run" : "Next turn";
  return {
    key: message.key,
    text: message.command ? `/${message.command} ${message.text}` : message.text,
    attached: message.attachments.length,
    label: message.error ? "Not sent" : isOffline ? "Will be sent" : message.state === "sent" ? later : "Sending",
    error: message.error,
    note: describeWait(message, isOffline),
    edit: (text) => Promise.resolve((changeOutgoing(message.key, text), true)),
    remove: () => dropOutgoing(message.key),
  };
}

function describeWait({ isKept, trouble, error }: Outgoing, isOffline: boolean): string {
  if (isOffline) return isKept ? "" : "Keep this page open: the files are too large to be kept.";
  return trouble && !error ? `${trouble} It is sent again in a moment.` : "";
}

function WaitingRow({ waiting }: { waiting: Waiting }) {
  const [isEditing, setEditing] = useState(false);
  if (isEditing) return <EditingRow waiting={waiting} onEnd={() => setEditing(false)} />;
  const { text, attached, label, error, note } = waiting;
  return (
    <li>
      <span class={error ? "lb bad" : "lb"}>{label}</span>
      <span class="cut sp" title={text}>
        <VisibleText text={text.replace(/\s+/g, " ")} />
        {attached > 0 && <span class="m3"> {attached === 1 ? "1 file" : `${attached} files`}</span>}
      </span>
      <button type="button" class="b bare ico" aria-label="Edit" title="Edit" onClick={() => setEditing(true)}>
        <Icon name="pen" class="sm" />
      </button>
      <button type="button" class="b bare ico" aria-label="Remove" title="Remove" onClick={waiting.remove}>
        <Icon name="x" class="sm" />
      </button>
      {error && <p class="why bad">{error}</p>}
      {note && <p class="why m3">{note}</p>}
    </li>
  );
}

function EditingRow({ waiting, onEnd }: { waiting: Waiting; onEnd: () => void }) {
  const field = useRef<HTMLTextAreaElement>(null);
  const [text, setText] = useState(waiting.text);
  useEffect(() => field.current?.select(), []);
  const save = async (): Promise<void> => {
    if (text.trim() === "" || text === waiting.text || (await waiting.edit(text))) onEnd();
  };
  const onKeyDown = (event: KeyboardEvent): void => {
    if (isOfInputMethod(event)) return;
    if (event.key === "Escape") onEnd();
    else if (event.key === "Enter" && !event.shiftKey) void save();
    else return;
    event.preventDefault();
    event.stopPropagation();
  };
  return (
    <li class="editing">
      <span class="lb">{waiting.label}</span>
      <textarea
        ref={field}
        class="queue-field sp"
        aria-label="Queued message"
        rows={1}
        value={text}
        onInput={(event) => setText(event.currentTarget.value)}
        onKeyDown={onKeyDown}
      />
      <button type="button" class="b" onClick={() => void save()}>
        Save
      </button>
      <button type="button" class="b bare" onClick={onEnd}>
        Cancel
      </button>
    </li>
  );
}
