/** The files of a rewind: each with its diff, and those that are left alone with the reason. */

import { useMemo, useState } from "preact/hooks";
import type { ChangedFile, RewindView } from "../generated/api.ts";
import { Icon } from "../ui/icon.tsx";
import { VisibleText } from "../ui/visible-text.tsx";
import { countUnified, type DiffCount } from "../workspace/diff-rows.ts";
import { DiffNumbers, UnifiedDiff } from "../workspace/diff.tsx";

interface RewindFilesProps {
  view: RewindView;
  force: boolean;
  onForce: (force: boolean) => void;
}

/** So many files are shown until the person asks for all. */
const MOST_FILES = 50;

export function RewindFiles({ view, force, onForce }: RewindFilesProps) {
  const hasOthers = force || view.skipped.some((one) => one.why.includes("force"));
  return (
    <div class="rewind-files">
      {view.changes.length === 0 && <p class="m3">No file has to change.</p>}
      <ChangeList changes={view.changes} kinds={KINDS} />
      {view.skipped.map((one) => (
        <p key={one.path} class="left-alone">
          <Icon name="ban" class="sm" />
          <span>
            <span class="mono"><VisibleText text={one.path} /></span> <span class="m3">left alone: {one.why}</span>
          </span>
        </p>
      ))}
      {hasOthers && (
        <label class="keep rewind-force">
          <input type="checkbox" checked={force} onChange={(event) => onForce(event.currentTarget.checked)} />
          Overwrite what somebody else changed too
        </label>
      )}
    </div>
  );
}

interface ChangeListProps {
  changes: readonly ChangedFile[];
  /** What is said of each kind of change. */
  kinds?: Partial<Record<ChangedFile["kind"], string>>;
}

/** Files with their diffs to unfold. The first one is open. */
export function ChangeList({ changes, kinds = {} }: ChangeListProps) {
  const [open, setOpen] = useState(changes[0]?.path ?? "");
  const [isWhole, setWhole] = useState(false);
  const shown = isWhole ? changes : changes.slice(0, MOST_FILES);
  return (
    <>
      {shown.map((change) => (
        <FileEntry
          key={change.path}
          change={change}
          kind={kinds[change.kind] ?? ""}
          isOpen={open === change.path}
          onToggle={() => setOpen(open === change.path ? "" : change.path)}
        />
      ))}
      {shown.length < changes.length && (
        <button type="button" class="chip" onClick={() => setWhole(true)}>
          Show all {changes.length} files
        </button>
      )}
    </>
  );
}

interface FileEntryProps {
  change: ChangedFile;
  kind: string;
  isOpen: boolean;
  onToggle: () => void;
}

function FileEntry({ change, kind, isOpen, onToggle }: FileEntryProps) {
  const count = useMemo(() => countUnified(change.diff), [change.diff]);
  return (
    <div class="files">
      <button type="button" class="file-row" aria-expanded={isOpen} onClick={onToggle}>
        <Icon name={isGit(change) ? "fork" : "file"} class="sm" />
        <span class="cut"><VisibleText text={change.path} /></span>
        <span class="m3">{kind}</span>
        <DiffNumbers {...count} />
      </button>
      {isOpen && change.diff && <ChangeText change={change} />}
    </div>
  );
}

/** The diff of a file. For git, where it was and is, and the commits that calls added. */
export function ChangeText({ change, isSplit = false }: { change: ChangedFile; isSplit?: boolean }) {
  if (!isGit(change)) return <UnifiedDiff text={change.diff} path={change.path} isSplit={isSplit} />;
  return (
    <pre class="git-change">
      <VisibleText text={change.diff || "Nothing more is known of it."} />
    </pre>
  );
}

const KINDS: Record<ChangedFile["kind"], string> = {
  added: "comes back", modified: "", deleted: "is removed", committed: "goes back", moved: "goes back", staged: "goes back",
};

/** A branch, a tag, HEAD or the index: no file of the person's. */
export function isGit({ kind }: ChangedFile): boolean {
  return kind === "committed" || kind === "moved" || kind === "staged";
}

export function sumChanges(changes: readonly ChangedFile[]): DiffCount {
  const sum = { added: 0, removed: 0 };
  for (const change of changes) {
    const count = countUnified(change.diff);
    sum.added += count.added;
    sum.removed += count.removed;
  }
  return sum;
}
