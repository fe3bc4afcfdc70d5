/** The blue bar that says that the page shows the past, and the bar after a rewind. */

import { useKeys } from "../keys.ts";
import { route } from "../router.ts";
import { canSend } from "../store/me.ts";
import type { OpenSession } from "../store/open-session.ts";
import { formatTime } from "../ui/format.ts";
import { Icon } from "../ui/icon.tsx";
import { VisibleText } from "../ui/visible-text.tsx";
import { BUSY_SENTENCE, findLastRewind, forkAt, isBusy, moveTo, openRewind, undoRewind } from "./actions.ts";
import { useTimeline } from "./timeline.ts";
import type { Rewound } from "../generated/events.ts";

interface PastBannerProps {
  session: OpenSession;
  at: number | null;
}

export function PastBanner({ session, at }: PastBannerProps) {
  session.version.value;
  if (at !== null) return <Past session={session} at={at} />;
  const rewound = findLastRewind(session.facts);
  return rewound && canSend.value ? <AfterRewind session={session} fact={rewound} /> : null;
}

function Past({ session, at }: { session: OpenSession; at: number }) {
  const timeline = useTimeline(session);
  const isTimeOpen = route.value.page === "session" && route.value.tab === "time";
  useKeys([{ keys: "Escape", label: "Back to now", where: "Time", run: () => moveTo(null) }]);
  const turn = timeline.turnAt(at);
  const after = session.view.run !== null ? "The run goes on after this." : "The session went on after this.";
  return (
    <div class="ban past" role="status">
      <Icon name="clock" />
      <span class="ban-tx">
        <b class="w5">As it was at {formatTime(timeline.timeAt(at), { seconds: true })}.</b>{" "}
        <span class="m2">
          Fact {at} of {timeline.length}
          {turn > 0 && `, turn ${turn}`}. {after}
        </span>
      </span>
      {canSend.value && !isTimeOpen && <PastButtons session={session} at={at} />}
      <button type="button" class="b" onClick={() => moveTo(null)}>
        Back to now <kbd>Esc</kbd>
      </button>
    </div>
  );
}

/** Fork and rewind at a position. The server refuses to rewind while a run is unfinished. */
export function PastButtons({ session, at }: { session: OpenSession; at: number | null }) {
  session.version.value;
  const busy = isBusy(session.view);
  return (
    <>
      <button type="button" class="b" onClick={() => void forkAt(session, at)}>
        <Icon name="fork" />
        Fork here
      </button>
      <button
        type="button"
        class="b"
        disabled={busy || at === null}
        title={busy ? BUSY_SENTENCE : at === null ? "Move back first. This is now." : undefined}
        onClick={() => at !== null && openRewind(session, at)}
      >
        <Icon name="rew" />
        Rewind here…
      </button>
    </>
  );
}

function AfterRewind({ session, fact }: { session: OpenSession; fact: Rewound }) {
  const busy = isBusy(session.view);
  return (
    <div class="ban" role="status">
      <Icon name="rew" />
      <span class="ban-tx">
        <b class="w5"><WhatIs fact={fact} /> as at fact {fact.to}.</b>{" "}
        <span class="m2">What came after it stays in the log.</span>
      </span>
      <button type="button" class="b" disabled={busy} title={busy ? BUSY_SENTENCE : undefined} onClick={() => void undoRewind(session)}>
        Undo rewind
      </button>
    </div>
  );
}

const WHAT = { both: "Files and conversation are", files: "The files are", conversation: "The conversation is" };

/** One file that was reverted is named. */
function WhatIs({ fact }: { fact: Rewound }) {
  const [file, second] = fact.files ?? [];
  if (fact.what !== "files" || !file || second) return <>{WHAT[fact.what ?? "both"]}</>;
  return (
    <>
      <VisibleText text={file.path} /> is
    </>
  );
}
