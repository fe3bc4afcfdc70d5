/** Finished neighbours in one line: "7 calls, read 4 files, ran 1 command". Unfolded, its cards follow as rows. */

import { formatDuration } from "../ui/format.ts";
import { DiffNumbers } from "../workspace/diff.tsx";
import type { CallView } from "../view.ts";
import { useConversation } from "./context.ts";
import { FoldLine } from "./fold-line.tsx";
import type { Step } from "./rows.ts";
import { describeChain, describeResult, measureDuration, nameChain, readArguments } from "./tool-text.ts";

interface ChainRowProps {
  id: string;
  steps: readonly Step[];
  isOpen: boolean;
}

export function ChainRow({ id, steps, isOpen }: ChainRowProps) {
  const { folding } = useConversation();
  const calls = steps.flatMap((step) => ("call" in step ? [step.call] : []));
  const seconds = calls.reduce((sum, call) => sum + measureDuration(call), 0);
  const changes = calls.reduce(addChanges, { added: 0, removed: 0 });
  return (
    <div class="tc">
      <FoldLine
        icon="check"
        iconClass="m3"
        name={nameChain(calls)}
        isOpen={isOpen}
        onToggle={() => folding.set(id, !isOpen)}
        meta={changes.added + changes.removed > 0 && <DiffNumbers added={changes.added} removed={changes.removed} />}
        time={seconds >= 0.05 ? formatDuration(seconds) : undefined}
      >
        <span class="m3 cut">{describe(calls)}</span>
      </FoldLine>
    </div>
  );
}

function addChanges(sum: { added: number; removed: number }, call: CallView): { added: number; removed: number } {
  const fact = describeResult(call);
  return { added: sum.added + (fact?.added ?? 0), removed: sum.removed + (fact?.removed ?? 0) };
}

/** The files of edits, the commands' number, or how many of each kind. */
function describe(calls: readonly CallView[]): string {
  const name = nameChain(calls);
  if (!name.endsWith("edits") && !name.endsWith("commands")) return describeChain(calls);
  const names = calls.map((call) => {
    const args = readArguments(call);
    return String(args.path ?? args.command ?? "").split("\n", 1)[0] ?? "";
  });
  return [...new Set(names.filter(Boolean))].slice(0, 6).join(", ");
}
