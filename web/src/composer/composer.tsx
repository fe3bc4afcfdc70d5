/** Where a person writes to a session: the messages that wait, the field, and the buttons to send and to stop. */

import { useMemo, useRef, useState } from "preact/hooks";
import { api, sessionPath } from "../api.ts";
import { openQuestions } from "../fold.ts";
import type { FoundFiles } from "../generated/api.ts";
import { isTyping, useKeys } from "../keys.ts";
import { isPhone } from "../list/phone.ts";
import { focusComposer, selectedAsk } from "../questions/selection.ts";
import { connection } from "../store/connection.ts";
import { canSend } from "../store/me.ts";
import type { OpenSession } from "../store/open-session.ts";
import { moveTo } from "../time/actions.ts";
import { Icon } from "../ui/icon.tsx";
import { attempt } from "../ui/toasts.tsx";
import type { View } from "../view.ts";
import { AttachButton, AttachedFiles, useAttaching, useDrop } from "./attached-files.tsx";
import { MOST_FILES } from "./completion.ts";
import { changeDraft, clearDraft, draftOf } from "./drafts.ts";
import { useHistory } from "./history.ts";
import { MentionButton, MessageField } from "./message-field.tsx";
import { send, type SendMode } from "./outbox.ts";
import { Queue } from "./queue.tsx";
import { SessionSettings } from "./session-settings.tsx";
import { listCommands, loadCustom, parseCommand } from "./slash-commands.ts";
import type { SuggestionSource } from "./use-completion.ts";

interface DockProps {
  session: OpenSession;
  at: number | null;
}

export function Dock({ session, at }: DockProps) {
  if (at !== null) {
    return (
      <footer class="dock dock-line">
        <span class="m2">This is the past.</span>
        <button type="button" class="b bare acc" onClick={() => moveTo(null)}>
          {canSend.value ? "Go back to now to write" : "Back to now"}
        </button>
      </footer>
    );
  }
  if (!canSend.value) return <footer class="dock dock-line m2">You may look, not write. Ask for a token that may send.</footer>;
  return <Composer session={session} />;
}

function Composer({ session }: { session: OpenSession }) {
  session.version.value;
  const { id, view } = session;
  const field = useRef<HTMLTextAreaElement>(null);
  const { text, attachments } = draftOf(id).value;
  const isEmpty = text.trim() === "" && attachments.length === 0;
  const { isStopping, stop } = useStop(session);
  const post = usePost(session, stop);
  const write = (changed: string): void => changeDraft(id, { text: changed });
  const attach = useAttaching(id);
  const isDropping = useDrop(attach);
  const history = useHistory(session, write);
  useComposerKeys(session, field, stop);
  const source = useMemo(() => findSource(session, stop), [session]);
  const onKeyDown = (event: KeyboardEvent): void => {
    if (event.key === "Enter" && !event.shiftKey) void post(event.altKey ? "follow_up" : "queue");
    else if (!history.onKeyDown(event, text)) return;
    event.preventDefault();
  };
  const isCompact = isPhone.value && isEmpty;
  return (
    <footer class="dock">
      <Queue session={session} />
      <div class={`comp${isCompact ? " compact" : ""}${isDropping ? " on dropping" : ""}`}>
        <AttachedFiles draft={id} />
        <MessageField
          field={field}
          label="Message"
          placeholder={isDropping ? "Drop files to attach them" : choosePlaceholder(view)}
          text={text}
          source={source}
          onText={write}
          onFiles={attach}
          onKeyDown={onKeyDown}
        />
        <div class="comp-f">
          <AttachButton onFiles={attach} />
          {!isCompact && <MentionButton field={field} />}
          {!isCompact && <SessionSettings session={session} />}
          <span class="sp" />
          {view.run !== null && <StopButton isStopping={isStopping} stop={stop} />}
          {!(isCompact && view.run) && <SendButtons view={view} isEmpty={isEmpty} post={(mode) => void post(mode)} />}
        </div>
      </div>
    </footer>
  );
}

function findSource(session: OpenSession, stop: () => void): SuggestionSource {
  const path = sessionPath(session.id, "/files");
  return {
    findFiles: async (typed) => (await api.get<FoundFiles>(path, { q: typed, limit: MOST_FILES })).files,
    listCommands: () => listCommands(session, stop),
    loadCommands: (isStart) => loadCustom(session.id, isStart),
  };
}

/** Send what was written, or do what its command says. */
function usePost(session: OpenSession, stop: () => void): (mode: SendMode) => Promise<void> {
  const isBusy = useRef(false);
  return async (wanted) => {
    const { id, view } = session;
    const { text, attachments } = draftOf(id).peek();
    if (isBusy.current || (text.trim() === "" && attachments.length === 0)) return;
    isBusy.current = true;
    // It takes a moment to learn which commands there are, but only for a text that begins like one.
    const command = text.startsWith("/") && attachments.length === 0 ? await parseCommand(session, text, stop) : null;
    isBusy.current = false;
    clearDraft(id);
    focusComposer();
    if (command && "run" in command) return command.run();
    const mode = view.run === null ? "queue" : wanted;
    send({ sessionId: id, text: command ? command.rest : text, attachments, mode, command: command?.name ?? "" });
  };
}

function choosePlaceholder(view: View): string {
  if (connection.value === "offline") return "Write now, it is sent when the connection is back";
  if (isPhone.value && view.run) return "Steer or queue";
  if (openQuestions(view).length > 0) return "The run waits for your answer. Steer it here, or deny with a reason";
  if (view.run) return "Steer the run, or queue what comes after it";
  if (view.last?.can_continue) return isPhone.value ? "Say what to do next" : "Say what to do next, or continue";
  return view.items.length > 0 ? "Say what to do next" : "Say what should be done";
}

interface SendButtonsProps {
  view: View;
  isEmpty: boolean;
  post: (mode: SendMode) => void;
}

/** Only a message that can be sent has a primary button, and none has it while the run waits for an answer. */
function SendButtons({ view, isEmpty, post }: SendButtonsProps) {
  const primary = isEmpty || openQuestions(view).length > 0 ? "b" : "b pri";
  if (view.run === null) {
    return (
      <button type="button" class={primary} disabled={isEmpty} onClick={() => post("queue")}>
        Send <Icon name="up" class="sm" />
      </button>
    );
  }
  return (
    <>
      <button type="button" class="b" disabled={isEmpty} title="Send it after this run (Alt Enter)" onClick={() => post("follow_up")}>
        Queue
      </button>
      <button type="button" class={primary} disabled={isEmpty} title="Send it with the next turn (Enter)" onClick={() => post("queue")}>
        Steer <Icon name="up" class="sm" />
      </button>
    </>
  );
}

function StopButton({ isStopping, stop }: { isStopping: boolean; stop: () => void }) {
  return (
    <button type="button" class="b bare stop" disabled={isStopping} onClick={stop}>
      <Icon name={isStopping ? "run" : "stop"} class="sm" />
      <span class="stop-word">{isStopping ? "Stopping" : "Stop"}</span>
      {!isStopping && <kbd>Esc</kbd>}
    </button>
  );
}

/** Stop the run. The page says so at once, before the server does. */
function useStop({ id, view }: OpenSession): { isStopping: boolean; stop: () => void } {
  const [asked, setAsked] = useState("");
  const isStopping = view.run !== null && (asked === view.run.id || view.run.isStopping);
  const stop = async (): Promise<void> => {
    const run = view.run?.id ?? "";
    setAsked(run);
    if (!(await attempt(() => api.post(sessionPath(id, "/cancel"))))) setAsked("");
  };
  return { isStopping, stop: () => void stop() };
}

/** Esc stops the run, unless somebody types elsewhere or a question is selected. */
function useComposerKeys(session: OpenSession, field: { current: HTMLTextAreaElement | null }, stop: () => void): void {
  const isHere = (): boolean => document.activeElement === field.current;
  const mayStop = (): boolean =>
    session.view.run !== null && (isHere() || (selectedAsk.peek() === "" && !isTyping(document.activeElement)));
  const where = "Session";
  // The field itself handles them. They stand here for the list of keys.
  const inField = { where, isActive: () => false, run: () => undefined };
  useKeys([
    { keys: "Enter", label: "Send, or steer the run", ...inField },
    { keys: "Alt+Enter", label: "Send after this run", ...inField },
    { keys: "Shift+Enter", label: "New line", ...inField },
    { keys: "i", label: "Write a message", where, run: focusComposer },
    { keys: "Escape", label: "Stop the run", where, whileTyping: true, isActive: mayStop, run: stop },
    {
      keys: "Escape", label: "Leave the message", where, whileTyping: true,
      isActive: () => isHere() && session.view.run === null,
      run: () => field.current?.blur(),
    },
  ]);
}
