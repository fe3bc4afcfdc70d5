/** The head of one side of a comparison: what came of the session, in numbers. */

import type { ComponentChildren } from "preact";
import { useMemo } from "preact/hooks";
import { statusOf } from "../fold.ts";
import { nameOpenSession, nameSession } from "../list/session-status.ts";
import { navigate, buildPath } from "../router.ts";
import type { OpenSession } from "../store/open-session.ts";
import { sortedSessions } from "../store/sessions.ts";
import { formatCost, formatDuration } from "../ui/format.ts";
import { Icon, type IconName } from "../ui/icon.tsx";
import { Menu, type MenuItem } from "../ui/menu.tsx";
import { VisibleText } from "../ui/visible-text.tsx";
import { useChanges } from "../workspace/changes-data.ts";
import { DiffNumbers } from "../workspace/diff.tsx";
import type { View } from "../view.ts";
import { sumRunTime } from "./compare-data.ts";
import { useBranches } from "./fork-data.ts";
import { sumChanges } from "./rewind-files.tsx";
import { useTimeline } from "./timeline.ts";

interface CompareHeadProps {
  session: OpenSession;
  /** The session on the other side. */
  other: string;
  side: "left" | "right";
}

export function CompareHead({ session, other, side }: CompareHeadProps) {
  const timeline = useTimeline(session);
  const { files } = useChanges(session, 0);
  const count = useMemo(() => sumChanges(files ?? []), [files]);
  const { view } = session;
  const outcome = describeOutcome(view);
  return (
    <section class="cc" aria-label={side === "left" ? "Left session" : "Right session"}>
      <h2>
        <Icon name={outcome.icon} class={outcome.isBad ? "bad" : "m3"} />
        <a class="cut" href={buildPath({ page: "session", id: session.id, tab: "conversation", at: null })}>
          <VisibleText text={nameOpenSession(session)} />
        </a>
        <ChooseMenu session={session} other={other} side={side} />
      </h2>
      <dl class="kvh">
        <Entry name="Outcome"><span class={outcome.isBad ? "bad" : ""}>{outcome.word}</span></Entry>
        <Entry name="Turns">{timeline.turns.length}</Entry>
        <Entry name="Time">{formatDuration(sumRunTime(session.facts))}</Entry>
        <Entry name="Cost">{formatCost(view.usage.cost)}</Entry>
        <Entry name="Files">
          {view.changedFiles.length}
          {files && files.length > 0 && <>, <DiffNumbers {...count} /></>}
        </Entry>
      </dl>
    </section>
  );
}

function Entry({ name, children }: { name: string; children: ComponentChildren }) {
  return (
    <div>
      <dt>{name}</dt>
      <dd>{children}</dd>
    </div>
  );
}

const MOST_CHOICES = 20;

/** Another session for this side. Forks come first. */
function ChooseMenu({ session, other, side }: CompareHeadProps) {
  const family = useBranches(other).map((branch) => branch.session);
  const known = new Set([other, session.id, ...family.map((one) => one.id)]);
  const recent = sortedSessions.value.filter((one) => !known.has(one.id)).slice(0, MOST_CHOICES);
  const choose = (id: string): void => navigate({ page: "compare", left: side === "left" ? id : other, right: side === "left" ? other : id });
  const items = [...family.filter((one) => one.id !== session.id).slice(0, MOST_CHOICES), ...recent].map((one, index): MenuItem => ({
    label: nameSession(one),
    run: () => choose(one.id),
    ...(index === 0 ? { heading: "Compare with" } : {}),
  }));
  if (items.length === 0) return null;
  return (
    <Menu label="Choose another session" items={items} class="chip">
      <span class="sr">Choose another session</span>
      <Icon name="down" class="sm" />
    </Menu>
  );
}

function describeOutcome(view: View): { word: string; icon: IconName; isBad: boolean } {
  const status = statusOf(view);
  if (status === "running" || status === "retrying") return { word: "Running", icon: "run", isBad: false };
  if (status === "waiting") return { word: "Needs you", icon: "ask", isBad: false };
  const reason = view.last?.reason;
  if (!reason) return { word: "Not started", icon: "ring", isBad: false };
  if (reason === "answered") return { word: "Done", icon: "check", isBad: false };
  if (reason === "cancelled") return { word: "Stopped", icon: "stop", isBad: false };
  if (reason === "failed") return { word: "Failed", icon: "fail", isBad: true };
  return { word: `Stopped, ${reason.replace("_", " ")}`, icon: "fail", isBad: true };
}
