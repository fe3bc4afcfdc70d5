/** Time: the large line of time, the waterfall of the run, and the forks. It opens over the centre and the rail. */

import { canSend } from "../store/me.ts";
import type { OpenSession } from "../store/open-session.ts";
import { Icon } from "../ui/icon.tsx";
import { clampPosition, moveTo, showTab } from "./actions.ts";
import { Checkpoints } from "./checkpoints.tsx";
import { ForkTree } from "./fork-tree.tsx";
import { PastButtons } from "./past-banner.tsx";
import { Scrubber } from "./scrubber.tsx";
import { useTimeline } from "./timeline.ts";
import { Waterfall } from "./waterfall.tsx";

interface TimePanelProps {
  session: OpenSession;
  at: number | null;
}

export function TimePanel({ session, at }: TimePanelProps) {
  return (
    <section class="time" aria-label="Time">
      <Head session={session} at={at} />
      <Waterfall facts={session.facts} at={at} version={session.version.value} />
      <div class="forks">
        <ForkTree session={session} at={at} />
        <Checkpoints session={session} at={at} />
      </div>
    </section>
  );
}

function Head({ session, at }: TimePanelProps) {
  const { length } = useTimeline(session);
  const seq = at ?? length;
  return (
    <div class="scrub">
      <div class="scrub-step">
        <button type="button" class="b bare ico" aria-label="Back one fact (Left)" disabled={seq <= 1} onClick={() => moveTo(clampPosition(seq - 1, length))}>
          <Icon name="back" />
        </button>
        <button type="button" class="b bare ico" aria-label="On one fact (Right)" disabled={at === null} onClick={() => moveTo(clampPosition(seq + 1, length))}>
          <Icon name="chev" />
        </button>
        <span class="m2 t12">
          {seq} of {length}
        </span>
      </div>
      <Scrubber session={session} at={at} />
      <div class="scrub-do">
        {canSend.value && <PastButtons session={session} at={at} />}
        <button type="button" class="b bare ico scrub-x" aria-label="Close Time (H)" title="Close Time (H)" onClick={() => showTab("conversation")}>
          <Icon name="x" />
        </button>
      </div>
    </div>
  );
}
