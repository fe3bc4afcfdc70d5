/** Before a rewind: what goes back, as diffs, what is left alone and why, and the fork as the other way. */

import { useEffect, useState } from "preact/hooks";
import type { RewindView } from "../generated/api.ts";
import { Dialog } from "../ui/dialog.tsx";
import { formatTime, plural } from "../ui/format.ts";
import { Icon } from "../ui/icon.tsx";
import { BUSY_SENTENCE, forkAt, isBusy, previewRewind, rewind, rewindRequest, type RewindRequest, type RewindTarget } from "./actions.ts";
import { isGit, RewindFiles, sumChanges } from "./rewind-files.tsx";
import { Segments } from "./segments.tsx";
import { useTimeline, type Timeline } from "./timeline.ts";
import { DiffNumbers } from "../workspace/diff.tsx";

const TARGETS = [["files", "Files"], ["conversation", "Conversation"], ["both", "Both"]] as const;
const BUTTONS: Record<RewindTarget, string> = {
  files: "Rewind files",
  conversation: "Rewind conversation",
  both: "Rewind both",
};

/** The rewind dialog, when it is open. */
export function RewindDialog() {
  const request = rewindRequest.value;
  return request && <OpenDialog key={request.seq} request={request} />;
}

function OpenDialog({ request }: { request: RewindRequest }) {
  const { session, seq } = request;
  const [what, setWhat] = useState<RewindTarget>(request.what);
  const [force, setForce] = useState(false);
  const [isSending, setSending] = useState(false);
  const preview = usePreview(request, force);
  const timeline = useTimeline(session);
  const busy = isBusy(session.view);
  const close = (): void => void (rewindRequest.value = null);
  const send = async (): Promise<void> => {
    setSending(true);
    if (await rewind(session, { seq, what, force })) close();
    else setSending(false);
  };
  const footer = (
    <>
      <button type="button" class="b pri" disabled={busy || isSending || (what !== "conversation" && !preview.view)} onClick={() => void send()}>
        {BUTTONS[what]}
      </button>
      <button type="button" class="b" onClick={() => (close(), void forkAt(session, seq))}>
        Fork here instead
      </button>
      <span class="sp" />
      <button type="button" class="b bare" onClick={close}>
        Cancel <kbd>Esc</kbd>
      </button>
    </>
  );
  return (
    <Dialog title={`Rewind to fact ${seq}?`} class="rewind" onClose={close} footer={footer}>
      <p class="m2">{describePlace(timeline, seq)}. What comes after it stays in the log, and you can undo this.</p>
      <div class="rewind-what">
        <Segments label="What goes back" options={TARGETS} value={what} onChange={setWhat} hasFocus />
        <Summary what={what} view={preview.view} turns={timeline.turnsAfter(seq)} />
      </div>
      {busy && (
        <p class="rewind-busy" role="status">
          <Icon name="clock" class="sm" />
          {BUSY_SENTENCE}
        </p>
      )}
      {preview.error && <p class="bad" role="alert">{preview.error}</p>}
      {what !== "conversation" && preview.view && <RewindFiles view={preview.view} force={force} onForce={setForce} />}
    </Dialog>
  );
}

function describePlace(timeline: Timeline, seq: number): string {
  const turn = timeline.turnAt(seq);
  return `${formatTime(timeline.timeAt(seq), { seconds: true })}${turn > 0 ? `, turn ${turn}` : ""}`;
}

interface SummaryProps {
  what: RewindTarget;
  view: RewindView | null;
  turns: number;
}

function Summary({ what, view, turns }: SummaryProps) {
  const ahead = plural(turns, "turn");
  if (what === "conversation") return <span class="m2">{ahead} {turns === 1 ? "goes" : "go"}. Files stay as they are.</span>;
  if (!view) return <span class="m3">Comparing the files…</span>;
  const files = view.changes.filter((change) => !isGit(change));
  return (
    <span class="m2">
      {plural(files.length, "file")} <DiffNumbers {...sumChanges(files)} />
      {files.length < view.changes.length && ", what git keeps"}
      {what === "both" && `, ${ahead}`}
    </span>
  );
}

/** What the rewind would do to the files. It is asked again when it may overwrite more. */
function usePreview({ session, seq }: RewindRequest, force: boolean): { view: RewindView | null; error: string } {
  const [found, setFound] = useState<{ view: RewindView | null; error: string }>({ view: null, error: "" });
  useEffect(() => {
    let isGone = false;
    previewRewind(session, { seq, what: "files", force }).then(
      (view) => !isGone && setFound({ view, error: "" }),
      (error: unknown) => !isGone && setFound({ view: null, error: error instanceof Error ? error.message : String(error) }),
    );
    return () => void (isGone = true);
  }, [session, seq, force]);
  return found;
}
