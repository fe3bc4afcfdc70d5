/** The files that the session has changed, with their diffs since a position. One file can be reverted. */

import type { ComponentChildren } from "preact";
import { useMemo, useState } from "preact/hooks";
import type { ChangedFile } from "../generated/api.ts";
import { canSend } from "../store/me.ts";
import type { OpenSession } from "../store/open-session.ts";
import { findLastRewind, moveTo, openRewind, undoRewind } from "../time/actions.ts";
import { isGit, sumChanges } from "../time/rewind-files.tsx";
import { copyText } from "../ui/copy-button.tsx";
import { formatCount, plural } from "../ui/format.ts";
import { Icon } from "../ui/icon.tsx";
import { Menu } from "../ui/menu.tsx";
import { showToast } from "../ui/toasts.tsx";
import { VisibleText } from "../ui/visible-text.tsx";
import { ArtifactPane } from "./artifact.tsx";
import { buildPatch, getChangeFacts, useChanges, type ChangeFacts } from "./changes-data.ts";
import { countUnified } from "./diff-rows.ts";
import { DiffNumbers } from "./diff.tsx";
import { FilePane } from "./file-pane.tsx";

interface ChangesTabProps {
  session: OpenSession;
  /** Shows what has changed since this position; null is since the start. */
  at: number | null;
}

/** What the right side shows: a file by its path, or an output by its call. */
type Chosen = { path: string } | { callId: string };

export function ChangesTab({ session, at }: ChangesTabProps) {
  session.version.value;
  const facts = getChangeFacts(session.facts);
  const [isSinceMessage, setSinceMessage] = useState(false);
  const [chosen, setChosen] = useState<Chosen | null>(null);
  const after = at ?? (isSinceMessage ? facts.lastMessage : 0);
  const { files, error } = useChanges(session, after);
  const artifact = chosen && "callId" in chosen ? facts.artifacts.find((one) => one.call_id === chosen.callId) : undefined;
  const file = files?.find((one) => chosen && "path" in chosen && one.path === chosen.path) ?? (artifact ? undefined : files?.[0]);
  const choose = (isMessage: boolean): void => {
    setSinceMessage(isMessage);
    moveTo(null);
  };
  return (
    <div class="changes">
      <section class="changes-side" aria-label="Changed files">
        <header class="changes-h">
          <b class="w5">{files ? plural(files.filter((one) => !isGit(one)).length, "file") : "Comparing…"}</b>
          {files && <span class="t12"><DiffNumbers {...sumChanges(files)} /></span>}
          <span class="sp" />
          <SinceMenu at={at} isSinceMessage={isSinceMessage} onChoose={choose} />
        </header>
        {error && <p class="bad changes-none" role="alert">{error}</p>}
        <div class="changes-list">
          {files?.map((one) => (
            <FileButton key={one.path} file={one} isChosen={one === file} onClick={() => setChosen({ path: one.path })} />
          ))}
        </div>
        <TakenBack session={session} />
        <LeftAlone files={files ?? []} />
        <Artifacts facts={facts} chosen={artifact?.call_id ?? ""} onChoose={(callId) => setChosen({ callId })} />
        {files && files.length > 0 && <Foot session={session} files={files} after={after} />}
      </section>
      <section class="changes-main" aria-label={artifact ? "Output" : "Diff"}>
        {artifact ? (
          <ArtifactPane session={session} finished={artifact} />
        ) : file ? (
          <FilePane key={file.path} session={session} file={file} after={after} />
        ) : (
          files && <NoChanges isSinceStart={after === 0} />
        )}
      </section>
    </div>
  );
}

function NoChanges({ isSinceStart }: { isSinceStart: boolean }) {
  return (
    <div class="empty">
      <p class="m2">{isSinceStart ? "No file differs from what it was before this session." : "No file differs from what it was then."}</p>
    </div>
  );
}

function SinceMenu({ at, isSinceMessage, onChoose }: { at: number | null; isSinceMessage: boolean; onChoose: (isMessage: boolean) => void }) {
  const text = at !== null ? `Since fact ${at}` : isSinceMessage ? "Since your message" : "Since start";
  return (
    <Menu
      label="Since when"
      class="chip"
      items={[
        { label: "Since the start", isChecked: at === null && !isSinceMessage, run: () => onChoose(false) },
        { label: "Since your last message", isChecked: at === null && isSinceMessage, run: () => onChoose(true) },
        ...(at !== null ? [{ label: `Since fact ${at}`, isChecked: true, run: () => undefined }] : []),
      ]}
    >
      {text} <Icon name="down" class="sm" />
    </Menu>
  );
}

function FileButton({ file, isChosen, onClick }: { file: ChangedFile; isChosen: boolean; onClick: () => void }) {
  const count = useMemo(() => countUnified(file.diff), [file.diff]);
  return (
    <button type="button" class="file-row" aria-current={isChosen || undefined} onClick={onClick} title={file.path}>
      <Icon name={isGit(file) ? "fork" : "file"} class="sm m3" />
      <span class="cut"><VisibleText text={file.path} /></span>
      {file.kind === "deleted" && <span class="m3">deleted</span>}
      <span class="sp" />
      <DiffNumbers {...count} />
    </button>
  );
}

/** What the last rewind or revert put back, while that can be undone. */
function TakenBack({ session }: { session: OpenSession }) {
  const last = findLastRewind(session.facts);
  if (!last?.files?.length) return null;
  return (
    <Group title="Taken back">
      {last.files.map((file) => (
        <p key={file.path} class="file-row">
          <Icon name="rew" class="sm m3" />
          <span class="cut"><VisibleText text={file.path} /></span>
        </p>
      ))}
      {canSend.value && (
        <button type="button" class="b bare acc" onClick={() => void undoRewind(session)}>
          Undo
        </button>
      )}
    </Group>
  );
}

function LeftAlone({ files }: { files: readonly ChangedFile[] }) {
  const others = files.filter((file) => file.others);
  if (others.length === 0) return null;
  return (
    <Group title="Changed by others too">
      {others.map((file) => (
        <p key={file.path} class="file-row">
          <Icon name="ban" class="sm m3" />
          <span class="cut"><VisibleText text={file.path} /></span>
        </p>
      ))}
      <p class="m3 t12">Somebody else changed {others.length === 1 ? "it" : "them"} after the last call did. A rewind leaves {others.length === 1 ? "it" : "them"} alone.</p>
    </Group>
  );
}

const MOST_ARTIFACTS = 50;

function Artifacts({ facts, chosen, onChoose }: { facts: ChangeFacts; chosen: string; onChoose: (callId: string) => void }) {
  if (facts.artifacts.length === 0) return null;
  return (
    <Group title="Artifacts">
      {facts.artifacts.slice(-MOST_ARTIFACTS).toReversed().map((one) => (
        <button key={one.call_id} type="button" class="file-row" aria-current={one.call_id === chosen || undefined} onClick={() => onChoose(one.call_id)}>
          <Icon name="note" class="sm m3" />
          <span class="cut"><VisibleText text={`${one.tool} output`} /></span>
          <span class="sp" />
          <span class="m3">{formatCount((one.truncation?.kept ?? 0) + (one.truncation?.dropped ?? 0))} characters</span>
        </button>
      ))}
    </Group>
  );
}

function Group({ title, children }: { title: string; children: ComponentChildren }) {
  return (
    <div class="changes-group">
      <h2>{title}</h2>
      {children}
    </div>
  );
}

function Foot({ session, files, after }: { session: OpenSession; files: readonly ChangedFile[]; after: number }) {
  return (
    <div class="acts changes-foot">
      <button type="button" class="b" onClick={() => void copyText(buildPatch(files)).then((isDone) => isDone && showToast("The patch was copied."))}>
        <Icon name="copy" />
        Copy as patch
      </button>
      {canSend.value && (
        <button type="button" class="b" onClick={() => openRewind(session, Math.max(1, after), "files")}>
          <Icon name="rew" />
          Rewind files…
        </button>
      )}
    </div>
  );
}
