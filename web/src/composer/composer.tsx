/** Where a person writes to a session: the messages that wait, the field, and the buttons to send and to stop. */

import { useRef, useState } from "preact/hooks";
import { api, sessionPath } from "../api.ts";
import { openQuestions } from "../fold.ts";
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
import { changeDraft, clearDraft, draftOf } from "./drafts.ts";
import { useHistory } from "./history.ts";
import { send, type SendMode } from "./outbox.ts";
import { Queue } from "./queue.tsx";

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
  const isRunning = view.run !== null;
  const isEmpty = text.trim() === "" && attachments.length === 0;
  const post = (mode: SendMode): void => {
    if (isEmpty) return;
    send({ sessionId: id, text, attachments, mode: isRunning ? mode : "queue" });
    clearDraft(id);
    focusComposer();
  };
  const history = useHistory(session, (shown) => changeDraft(id, { text: shown }));
  const stopping = useStop(session);
  useComposerKeys(session, field, stopping.stop);
  const onKeyDown = (event: KeyboardEvent): void => {
    if (event.isComposing || event.defaultPrevented) return;
    if (event.key === "Enter" && !event.shiftKey && !event.ctrlKey && !event.metaKey) post(event.altKey ? "follow_up" : "queue");
    else if (!history.onKeyDown(event, text)) return;
    event.preventDefault();
  };
  return (
    <footer class="dock">
      <Queue session={session} />
      <div class={isPhone.value && isEmpty ? "comp compact" : "comp"}>
        <textarea
          ref={field}
          class="in"
          data-composer
          rows={1}
          aria-label="Message"
          placeholder={choosePlaceholder(view)}
          value={text}
          enterkeyhint="send"
          onInput={(event) => changeDraft(id, { text: event.currentTarget.value })}
          onKeyDown={onKeyDown}
        />
        <div class="comp-f">
          <span class="sp" />
          {isRunning && <StopButton isStopping={stopping.isStopping} stop={stopping.stop} />}
          <SendButtons view={view} isEmpty={isEmpty} post={post} />
        </div>
      </div>
    </footer>
  );
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
      {isStopping ? "Stopping" : "Stop"} {!isStopping && <kbd>Esc</kbd>}
    </button>
  );
}

/** Stop the run. The page says so at once, before the server does. */
function useStop({ id, view }: OpenSession): { isStopping: boolean; stop: () => void } {
  const [asked, setAsked] = useState("");
  const run = view.run?.id ?? "";
  const isStopping = run !== "" && (asked === run || view.run?.isStopping === true);
  const stop = async (): Promise<void> => {
    if (isStopping) return;
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
  useKeys([
    { keys: "i", label: "Write a message", where, run: focusComposer },
    { keys: "Escape", label: "Stop the run", where, whileTyping: true, isActive: mayStop, run: stop },
    {
      keys: "Escape", label: "Leave the message", where, whileTyping: true,
      isActive: () => isHere() && session.view.run === null,
      run: () => field.current?.blur(),
    },
  ]);
}
