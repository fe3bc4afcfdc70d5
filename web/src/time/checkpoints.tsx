/** The positions from which a run can go on. They are loaded when they are unfolded. */

import { useEffect, useState } from "preact/hooks";
import { api, sessionPath } from "../api.ts";
import type { CheckpointPage, CheckpointView } from "../generated/api.ts";
import { canSend } from "../store/me.ts";
import type { OpenSession } from "../store/open-session.ts";
import { plural } from "../ui/format.ts";
import { Icon } from "../ui/icon.tsx";
import { Menu } from "../ui/menu.tsx";
import { BUSY_SENTENCE, isBusy, moveTo, resumeFrom } from "./actions.ts";

interface CheckpointsProps {
  session: OpenSession;
  at: number | null;
}

const SHOWN = 6;

export function Checkpoints({ session, at }: CheckpointsProps) {
  const [isOpen, setOpen] = useState(false);
  return (
    <section class="points" aria-label="Checkpoints">
      <button type="button" class="forks-h" aria-expanded={isOpen} onClick={() => setOpen(!isOpen)}>
        <h2>Checkpoints</h2>
        <Icon name={isOpen ? "down" : "chev"} class="sm m3" />
      </button>
      {isOpen && <List session={session} at={at} />}
    </section>
  );
}

function List({ session, at }: CheckpointsProps) {
  session.version.value;
  const [points, setPoints] = useState<CheckpointView[] | null>(null);
  const after = at === null ? 0 : at - 1;
  useEffect(() => {
    let isGone = false;
    // A person who drags along the line asks only where they stop.
    const timer = setTimeout(() => {
      api.get<CheckpointPage>(sessionPath(session.id, "/checkpoints"), { after, limit: SHOWN }).then(
        (page) => !isGone && setPoints(page.checkpoints),
        () => !isGone && setPoints([]),
      );
    }, 200);
    return () => {
      isGone = true;
      clearTimeout(timer);
    };
  }, [session, after]);
  if (!points) return <p class="m3 t12">Looking…</p>;
  if (points.length === 0) return <p class="m3 t12">No checkpoint after this position.</p>;
  return (
    <ul>
      {points.map((point) => (
        <li key={point.seq} class="point">
          <button type="button" class="t" onClick={() => moveTo(point.seq)}>
            <span class="cut">{describe(point)}</span>
            <small class="cut">
              Fact {point.seq}, {plural(point.turns, "turn")}
            </small>
          </button>
          {canSend.value && <PointMenu session={session} point={point} />}
        </li>
      ))}
    </ul>
  );
}

function PointMenu({ session, point }: { session: OpenSession; point: CheckpointView }) {
  const busy = isBusy(session.view);
  return (
    <Menu
      label="Go on from this checkpoint"
      items={[
        { label: "Go on in a fork", icon: "fork", run: () => void resumeFrom(session, point.seq, { fork: true }) },
        {
          label: "Go on here", icon: "play", isDisabled: busy, ...(busy ? { hint: BUSY_SENTENCE } : { hint: "The conversation is rewound to it." }),
          run: () => void resumeFrom(session, point.seq, { fork: false }),
        },
      ]}
    />
  );
}

function describe(point: CheckpointView): string {
  switch (point.kind) {
    case "after_user_input":
      return "After your message";
    case "before_llm":
      return "Before the model";
    case "before_tool_calls":
      return `Before ${plural(point.calls.length, "call")}`;
    case "after_tool_calls":
      return `After ${plural(point.results.length, "call")}`;
  }
}
