/** Who answered a call's question, in one line: "Allowed once by you, phone". */

import type { CallView } from "../view.ts";
import { VisibleText } from "../ui/visible-text.tsx";
import { printOutcome, readOutcome } from "./outcome.ts";

export function AnsweredLine({ call }: { call: CallView }) {
  const outcome = readOutcome(call);
  if (!outcome) return null;
  return (
    <span class="answered m3 t12 cut">
      <VisibleText text={printOutcome(outcome)} />
    </span>
  );
}
