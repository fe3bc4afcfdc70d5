/** What can be done with a message or a reply: copy, link, fork, edit and send again, ask again. */

import { api, sessionPath } from "../api.ts";
import { takeBack } from "../composer/drafts.ts";
import type { SessionView } from "../generated/api.ts";
import type { Part } from "../generated/events.ts";
import { focusComposer } from "../questions/selection.ts";
import { buildPath, openSession } from "../router.ts";
import { canSend } from "../store/me.ts";
import { openedSession, type OpenSession } from "../store/open-session.ts";
import { putSession } from "../store/sessions.ts";
import { forkAt, isBusy, regenerate, rewind } from "../time/actions.ts";
import { copyText } from "../ui/copy-button.tsx";
import { Icon, type IconName } from "../ui/icon.tsx";
import { attempt, showToast } from "../ui/toasts.tsx";
import { useConversation } from "./context.ts";

interface MessageMenuProps {
  kind: "message" | "reply";
  text: string;
  /** The position that the link and the fork lead to. */
  seq: number;
  /** All of a message, to be sent again. */
  parts?: readonly Part[];
  /** The answer at the end of the conversation may be asked for again. */
  isLast?: boolean;
}

export function MessageMenu({ kind, text, seq, parts = [], isLast = false }: MessageMenuProps) {
  const { source } = useConversation();
  const session = openedSession.value;
  const mayChange = session?.id === source.sessionId && canSend.value && !source.isPast;
  return (
    <span class="msg-acts" role="group" aria-label={kind === "message" ? "Your message" : "Reply"}>
      <Action icon="copy" label="Copy" run={() => void copyText(text).then((isDone) => isDone && showToast("Copied."))} />
      <Action icon="at" label="Copy a link to this position" run={() => void copyLink(source.sessionId, seq)} />
      {mayChange && kind === "reply" && <Action icon="fork" label="Fork here" run={() => void forkAt(session, seq)} />}
      {mayChange && kind === "reply" && isLast && !isBusy(session.view) && <Action icon="rew" label="Ask again" run={() => void regenerate(session)} />}
      {mayChange && kind === "message" && <Action icon="fork" label="Edit in a fork" run={() => void editInFork(session, seq, parts)} />}
      {mayChange && kind === "message" && <Action icon="pen" label="Edit and send again" run={() => void editAgain(session, seq, parts)} />}
    </span>
  );
}

function Action({ icon, label, run }: { icon: IconName; label: string; run: () => void }) {
  return (
    <button type="button" class="b bare ico" aria-label={label} title={label} onClick={run}>
      <Icon name={icon} class="sm" />
    </button>
  );
}

async function copyLink(id: string, seq: number): Promise<void> {
  const link = location.origin + buildPath({ page: "session", id, tab: "conversation", at: seq });
  if (await copyText(link)) showToast("The link was copied.");
}

/** Rewind the conversation to before the message, and put its text into the composer. While a run is under way, in a fork. */
async function editAgain(session: OpenSession, seq: number, parts: readonly Part[]): Promise<void> {
  if (isBusy(session.view)) return editInFork(session, seq, parts);
  if (!(await rewind(session, { seq: seq - 1, what: "conversation" }))) return;
  takeBack(session.id, parts);
  focusComposer();
}

async function editInFork(session: OpenSession, seq: number, parts: readonly Part[]): Promise<void> {
  await attempt(async () => {
    const fork = await api.post<SessionView>(sessionPath(session.id, "/fork"), { after: seq - 1 });
    putSession(fork);
    takeBack(fork.id, parts);
    openSession(fork.id);
  });
}
