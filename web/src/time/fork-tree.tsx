/** The forks as a tree: the own path as the trunk, and what left it to its right. */

import { buildPath } from "../router.ts";
import type { OpenSession } from "../store/open-session.ts";
import { describeStatus, nameSession } from "../list/session-status.ts";
import { sessions } from "../store/sessions.ts";
import { formatCost, formatTime } from "../ui/format.ts";
import { Icon } from "../ui/icon.tsx";
import { moveTo } from "./actions.ts";
import { useBranches, type Branch } from "./fork-data.ts";
import { useTimeline, type Timeline } from "./timeline.ts";

interface ForkTreeProps {
  session: OpenSession;
  at: number | null;
}

type Node =
  | { kind: "start" | "here" | "end"; seq: number; title: string; text: string; to: number | null }
  | { kind: "branch"; seq: number; branch: Branch };

const MOST_SHOWN = 60;

export function ForkTree({ session, at }: ForkTreeProps) {
  const branches = useBranches(session.id);
  const nodes = buildNodes(session, useTimeline(session), at, branches).slice(0, MOST_SHOWN);
  const here = nodes.findIndex((node) => node.kind === "here" || (at === null && node.kind === "end"));
  const first = branches[0];
  return (
    <section aria-label="Forks">
      <header class="forks-h">
        <h2>Forks</h2>
        <span class="sp" />
        {first && (
          <a class="chip" href={comparePath(session.id, first.session.id)}>
            <Icon name="cols" class="sm" />
            Compare
          </a>
        )}
      </header>
      <ul>
        {nodes.map((node, index) => (
          <Entry key={index} node={node} id={session.id} isPassed={index < here} isFirst={index === 0} isLast={index === nodes.length - 1} />
        ))}
      </ul>
      {branches.length === 0 && <p class="m3 t12">No forks yet. “Fork here” makes a copy that goes its own way.</p>}
    </section>
  );
}

function comparePath(left: string, right: string): string {
  return buildPath({ page: "compare", left, right });
}

function buildNodes(session: OpenSession, timeline: Timeline, at: number | null, branches: readonly Branch[]): Node[] {
  const { length } = timeline;
  const time = (seq: number) => formatTime(timeline.timeAt(seq), { seconds: true });
  const view = sessions.value.get(session.id);
  const name = session.view.name || view?.name || "This session";
  const [firstMessage] = timeline.messages;
  const start = firstMessage ?? 1;
  const cost = session.view.usage.cost;
  const trunk: Node[] = [{
    kind: "start", seq: start, title: firstMessage ? "First message" : "Start", text: `${formatTime(timeline.timeAt(start))} · fact ${start}`, to: start,
  }];
  if (at !== null) trunk.push({ kind: "here", seq: at, title: "You are here", text: `${time(at)} · fact ${at}`, to: at });
  const now = at === null ? "You are here" : name;
  trunk.push({ kind: "end", seq: length, title: now, text: `Now · fact ${length}${cost ? ` · ${formatCost(cost)}` : ""}`, to: null });
  const nodes = [...trunk];
  for (const branch of branches.toReversed()) {
    // A branch hangs right below the last part of the trunk that it shares.
    const place = nodes.findLastIndex((node) => node.kind !== "branch" && node.kind !== "end" && node.seq <= branch.seq);
    nodes.splice(Math.max(0, place) + 1, 0, { kind: "branch", seq: branch.seq, branch });
  }
  return nodes;
}

interface EntryProps {
  node: Node;
  id: string;
  /** The trunk beside it leads to the position on the screen. */
  isPassed: boolean;
  isFirst: boolean;
  isLast: boolean;
}

function Entry({ node, id, isPassed, isFirst, isLast }: EntryProps) {
  const isHere = node.kind !== "branch" && node.title === "You are here";
  const depth = node.kind === "branch" ? node.branch.depth : 0;
  return (
    <li class="fk" style={{ "--d": Math.min(depth, 4) }} aria-current={isHere || undefined}>
      <Lines depth={Math.min(depth, 4)} isHere={isHere} isPassed={isPassed} isFirst={isFirst} isLast={isLast} />
      {node.kind === "branch" ? <BranchText branch={node.branch} id={id} /> : <TrunkText node={node} isHere={isHere} />}
    </li>
  );
}

function TrunkText({ node, isHere }: { node: Exclude<Node, { kind: "branch" }>; isHere: boolean }) {
  return (
    <button type="button" class="t" onClick={() => moveTo(node.to)}>
      <span class={isHere ? "cut w5" : "cut"}>{node.title}</span>
      <small class="cut">{node.text}</small>
    </button>
  );
}

function BranchText({ branch, id }: { branch: Branch; id: string }) {
  const { session, seq, isOrigin } = branch;
  const text = `${isOrigin ? "Left" : "Fork"} at ${seq} · ${describeStatus(session).word.toLowerCase()}${session.cost ? ` · ${formatCost(session.cost)}` : ""}`;
  return (
    <>
      <a class="t" href={buildPath({ page: "session", id: session.id, tab: "time", at: null })}>
        <span class="cut">{nameSession(session)}</span>
        <small class="cut">{text}</small>
      </a>
      <a class="b bare ico fk-cmp" href={comparePath(id, session.id)} aria-label={`Compare with ${nameSession(session)}`} title="Compare from here">
        <Icon name="cols" class="sm" />
      </a>
    </>
  );
}

interface LinesProps {
  depth: number;
  isHere: boolean;
  isPassed: boolean;
  isFirst: boolean;
  isLast: boolean;
}

function Lines({ depth, isHere, isPassed, isFirst, isLast }: LinesProps) {
  const x = 8 + depth * 14;
  const isDone = isPassed || isHere;
  return (
    <svg class="ln2" width="40" aria-hidden="true">
      {!isFirst && <path class={isDone ? "on" : ""} d="M8 0V9" />}
      {!isLast && <line class={isPassed ? "on" : ""} x1={8} y1={9} x2={8} y2="100%" />}
      {depth > 0 && <path d={`M${x - 14} -12C${x - 14} 4 ${x - 10} 9 ${x} 9`} />}
      {isHere ? (
        <>
          <circle class="dot on" cx={x} cy={9} r={4} />
          <circle class="ring" cx={x} cy={9} r={7} />
        </>
      ) : (
        <circle class={isPassed && depth === 0 ? "dot on" : "dot"} cx={x} cy={9} r={4} />
      )}
    </svg>
  );
}
