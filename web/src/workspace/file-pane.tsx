/** One changed file: its diff, side by side if wanted, and reverting it with a preview. */

import { useEffect, useMemo, useState } from "preact/hooks";
import { signal } from "@preact/signals";
import { api, sessionPath } from "../api.ts";
import type { ChangedFile, RewindView } from "../generated/api.ts";
import { canSend } from "../store/me.ts";
import type { OpenSession } from "../store/open-session.ts";
import { BUSY_SENTENCE, isBusy, offerUndo } from "../time/actions.ts";
import { ChangeText, isGit } from "../time/rewind-files.tsx";
import { Segments } from "../time/segments.tsx";
import { Dialog } from "../ui/dialog.tsx";
import { formatTime, plural } from "../ui/format.ts";
import { Icon } from "../ui/icon.tsx";
import { attempt } from "../ui/toasts.tsx";
import { VisibleText } from "../ui/visible-text.tsx";
import { countUnified } from "./diff-rows.ts";
import { DiffNumbers, UnifiedDiff } from "./diff.tsx";

interface FilePaneProps {
  session: OpenSession;
  file: ChangedFile;
  /** The position that the file is compared with. 0 is before the session. */
  after: number;
}

type Layout = "unified" | "split";

/** The layout that the person chose last. */
const layout = signal<Layout>("unified");
const LAYOUTS = [["unified", "Unified"], ["split", "Split"]] as const;

export function FilePane({ session, file, after }: FilePaneProps) {
  const [isAsking, setAsking] = useState(false);
  const count = useMemo(() => countUnified(file.diff), [file.diff]);
  const busy = isBusy(session.view);
  return (
    <>
      <header class="bar file-head">
        <code class="w5 cut"><VisibleText text={file.path} /></code>
        <span class="t12"><DiffNumbers {...count} /></span>
        <span class="m3 t12 cut">{describeCalls(session, file)}</span>
        <span class="sp" />
        {!isGit(file) && (
          <span class="wide-only">
            <Segments label="Layout" options={LAYOUTS} value={layout.value} onChange={(chosen) => (layout.value = chosen)} />
          </span>
        )}
        {canSend.value && !isGit(file) && (
          <button type="button" class="b" disabled={busy} title={busy ? BUSY_SENTENCE.replace("Rewind", "Revert") : undefined} onClick={() => setAsking(true)}>
            <Icon name="rew" class="sm" />
            Revert file
          </button>
        )}
      </header>
      <div class="file-diff">
        <ChangeText change={file} isSplit={layout.value === "split"} />
      </div>
      {isAsking && <RevertDialog session={session} path={file.path} after={after} onClose={() => setAsking(false)} />}
    </>
  );
}

function describeCalls(session: OpenSession, file: ChangedFile): string {
  const last = session.view.calls.get(file.calls.at(-1) ?? "")?.finished;
  const calls = file.calls.length > 0 ? `by ${plural(file.calls.length, "call")}` : "";
  return [calls, last && `last at ${formatTime(last.at)}`].filter(Boolean).join(", ");
}

interface RevertDialogProps {
  session: OpenSession;
  path: string;
  after: number;
  onClose: () => void;
}

function RevertDialog({ session, path, after, onClose }: RevertDialogProps) {
  const [preview, setPreview] = useState<RewindView | null>(null);
  const [error, setError] = useState("");
  const body = { path, to: after || null };
  useEffect(() => {
    revert(session, { ...body, dry_run: true }).then(setPreview, (problem: unknown) => setError(problem instanceof Error ? problem.message : String(problem)));
  }, [session, path, after]);
  const change = preview?.changes[0];
  const send = async (isTold: boolean): Promise<void> => {
    onClose();
    await attempt(async () => {
      await revert(session, { ...body, dry_run: false });
      offerUndo(session, `${path} was reverted.`);
      if (isTold) await tellAgent(session, path, after);
    });
  };
  const footer = (
    <>
      <button type="button" class="b pri" disabled={!change} onClick={() => void send(false)}>
        Revert
      </button>
      <button type="button" class="b" disabled={!change} onClick={() => void send(true)}>
        Revert, and tell the agent
      </button>
      <span class="sp" />
      <button type="button" class="b bare" onClick={onClose}>
        Cancel <kbd>Esc</kbd>
      </button>
    </>
  );
  return (
    <Dialog title={`Revert ${path}?`} class="rewind" onClose={onClose} footer={footer}>
      {error && <p class="bad" role="alert">{error}</p>}
      {!error && <p class="m2">{describeRevert(preview, after)}</p>}
      {preview?.skipped.map((one) => <p key={one.path} class="m3">Left alone: {one.why}.</p>)}
      {change && (
        <div class="rewind-files">
          <UnifiedDiff text={change.diff} path={path} />
        </div>
      )}
    </Dialog>
  );
}

function describeRevert(preview: RewindView | null, after: number): string {
  if (!preview) return "Comparing the file…";
  const change = preview.changes[0];
  if (!change) return "Nothing would change.";
  const { added, removed } = countUnified(change.diff);
  const place = after > 0 ? `at fact ${after}` : "before this session";
  if (change.kind === "deleted") return `It did not exist ${place}, so it is removed with its ${plural(removed, "line")}. You can undo this.`;
  return `It goes back to what it was ${place}. ${plural(removed, "line")} ${removed === 1 ? "goes" : "go"}, ${added} ${added === 1 ? "comes" : "come"} back. You can undo this.`;
}

function revert(session: OpenSession, body: { path: string; to: number | null; dry_run: boolean }): Promise<RewindView> {
  return api.post<RewindView>(sessionPath(session.id, "/revert"), body);
}

async function tellAgent(session: OpenSession, path: string, after: number): Promise<void> {
  const place = after > 0 ? `an earlier state (fact ${after})` : "what it was before this session";
  await api.post(`${sessionPath(session.id, "/messages")}?wait=0`, { content: `I reverted ${path} to ${place}.` });
}
