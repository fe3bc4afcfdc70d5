/** A new session: what should be done, and with which agent, model, folder, access and limits. */

import { useEffect, useRef, useState } from "preact/hooks";
import { AttachButton, AttachedFiles, useAttaching, useDrop } from "../composer/attached-files.tsx";
import { changeDraft, draftOf, NEW } from "../composer/drafts.ts";
import { MentionButton, MessageField } from "../composer/message-field.tsx";
import { useKeys } from "../keys.ts";
import { canSend } from "../store/me.ts";
import { Icon } from "../ui/icon.tsx";
import { useTitle } from "../ui/title.ts";
import { NewForm } from "./new-form.tsx";
import { createSession, findFiles, loadChoices } from "./new-session.ts";

const SOURCE = { findFiles };

export function NewPage() {
  useTitle("New session");
  const [error, setError] = useState("");
  const [isSending, setSending] = useState(false);
  const field = useRef<HTMLTextAreaElement>(null);
  useEffect(() => {
    void loadChoices();
    field.current?.focus();
  }, []);
  const { text, attachments } = draftOf(NEW).value;
  const isEmpty = text.trim() === "" && attachments.length === 0;
  const attach = useAttaching(NEW);
  const isDropping = useDrop(attach);
  const start = async (): Promise<void> => {
    if (isSending || isEmpty) return;
    setSending(true);
    setError("");
    try {
      await createSession();
    } catch (problem) {
      setError(problem instanceof Error ? problem.message : String(problem));
      setSending(false);
    }
  };
  useKeys([{ keys: "Ctrl+Enter", label: "Start", where: "New session", run: () => void start(), whileTyping: true }]);
  if (!canSend.value) return <MayNotSend />;
  return (
    <main class="main">
      <div class="page-scroll">
        <div class="page new-page">
          <h1>What should be done?</h1>
          <div class={isDropping ? "comp on dropping" : "comp"}>
            <AttachedFiles draft={NEW} />
            <MessageField
              field={field}
              label="The first message"
              placeholder="Describe the task, and how you will know that it is done"
              text={text}
              source={SOURCE}
              onText={(changed) => changeDraft(NEW, { text: changed })}
              onFiles={attach}
              class="new-text"
              isBelow
            />
            <div class="comp-f">
              <AttachButton onFiles={attach} />
              <MentionButton field={field} />
              <span class="sp" />
              <span class="m3 t12 hint-keys">
                <kbd>Ctrl</kbd> <kbd>Enter</kbd>
              </span>
              <button
                type="button"
                class={isEmpty ? "b" : "b pri"}
                disabled={isSending || isEmpty}
                onClick={() => void start()}
              >
                {isSending ? "Starting" : "Start"} <Icon name="up" class="sm" />
              </button>
            </div>
          </div>
          {error && (
            <p class="form-error bad" role="alert">
              <Icon name="fail" class="sm" />
              <span>{error}</span>
            </p>
          )}
          <NewForm />
        </div>
      </div>
    </main>
  );
}

function MayNotSend() {
  return (
    <main class="main center">
      <div class="empty">
        <Icon name="key" />
        <h1>You may look, not start sessions</h1>
        <p>This token can see sessions. Ask for one that may send.</p>
      </div>
    </main>
  );
}
