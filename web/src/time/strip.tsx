/** The line of time under a session. It is always there, and makes room for the Time panel when that is open. */

import { useEffect } from "preact/hooks";
import { useKeys } from "../keys.ts";
import { route } from "../router.ts";
import { canSend } from "../store/me.ts";
import type { OpenSession } from "../store/open-session.ts";
import { formatTime } from "../ui/format.ts";
import { Icon } from "../ui/icon.tsx";
import { lazy } from "../ui/lazy.tsx";
import { clampPosition, forkAt, isBusy, moveTo, openRewind, rewindRequest, showTab } from "./actions.ts";
import { Scrubber } from "./scrubber.tsx";
import { getTimeline, useTimeline } from "./timeline.ts";

const RewindDialog = lazy(async () => (await import("./rewind-dialog.tsx")).RewindDialog);

interface StripProps {
  session: OpenSession;
  /** The position on the screen; null is now. */
  at: number | null;
}

export function Strip({ session, at }: StripProps) {
  const isOpen = route.value.page === "session" && route.value.tab === "time";
  useTimeKeys(session, at, isOpen);
  // The browser's back button leads away from what the dialog asks about.
  useEffect(() => () => void (rewindRequest.value = null), [session, at]);
  return (
    <>
      {!isOpen && <Line session={session} at={at} />}
      {rewindRequest.value && <RewindDialog />}
    </>
  );
}

function Line({ session, at }: StripProps) {
  const timeline = useTimeline(session);
  const seq = at ?? timeline.length;
  const isLive = at === null && session.view.run !== null;
  return (
    <section class={at === null ? "strip" : "strip past"} aria-label="Line of time">
      <span>{formatTime(timeline.timeAt(1))}</span>
      <Scrubber session={session} at={at} />
      <span class="strip-at">
        {at === null ? <b class={isLive ? "acc w5" : "w5"}>{isLive ? "Live" : "Now"}</b> : formatTime(timeline.timeAt(seq), { seconds: true })}, fact {seq}
      </span>
      <button type="button" class="chip" title="Open Time" onClick={() => showTab("time")}>
        <Icon name="time" class="sm" />
        Time <kbd>H</kbd>
      </button>
    </section>
  );
}

function useTimeKeys(session: OpenSession, at: number | null, isOpen: boolean): void {
  const where = "Time";
  const isPast = () => at !== null;
  const isUsed = () => (at !== null || isOpen) && session.loading.value === "ready";
  const timeline = () => getTimeline(session.facts);
  const move = (find: (seq: number) => number) => {
    const total = timeline().length;
    moveTo(clampPosition(find(at ?? total), total));
  };
  useKeys([
    { keys: "h", label: "Open or close Time", where, run: () => showTab(isOpen ? "conversation" : "time") },
    { keys: "ArrowLeft", label: "Back one fact", where, isActive: isUsed, run: () => move((seq) => seq - 1) },
    { keys: "ArrowRight", label: "On one fact", where, isActive: isUsed, run: () => move((seq) => seq + 1) },
    { keys: "Shift+ArrowLeft", label: "Back one turn", where, isActive: isUsed, run: () => move((seq) => timeline().turnBeside(seq, -1)) },
    { keys: "Shift+ArrowRight", label: "On one turn", where, isActive: isUsed, run: () => move((seq) => timeline().turnBeside(seq, 1)) },
    { keys: "f", label: "Fork here", where, isActive: () => isUsed() && canSend.value, run: () => void forkAt(session, at) },
    {
      keys: "w", label: "Rewind here", where,
      isActive: () => isPast() && canSend.value && !isBusy(session.view),
      run: () => at !== null && openRewind(session, at),
    },
  ]);
}
