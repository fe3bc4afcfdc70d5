/** Helpers of one reply as a tree: what each does, on which model, since when, with its own Stop. */

import { api, sessionPath } from "../api.ts";
import type { SessionView } from "../generated/api.ts";
import { callStatus } from "../fold.ts";
import { buildPath } from "../router.ts";
import { canSend } from "../store/me.ts";
import { sessions } from "../store/sessions.ts";
import { formatCost, formatDuration, formatModel, plural } from "../ui/format.ts";
import { Icon, type IconName } from "../ui/icon.tsx";
import { attempt } from "../ui/toasts.tsx";
import { VisibleText } from "../ui/visible-text.tsx";
import { QuestionCard } from "../questions/question-card.tsx";
import type { CallStatus, CallView } from "../view.ts";
import { useConversation } from "./context.ts";
import { Elapsed } from "./elapsed.tsx";
import { ToolBody } from "./tool-body.tsx";
import { describeArgument, measureDuration } from "./tool-text.ts";

export function HelpersRow({ calls }: { calls: readonly CallView[] }) {
  const { source } = useConversation();
  const found = new Map(findHelpers(source.sessionId).map((one) => [one.parent_call, one]));
  const done = calls.filter((call) => call.finished).length;
  const cost = [...found.values()].reduce((sum, one) => (calls.some((call) => call.call.id === one.parent_call) ? sum + one.cost : sum), 0);
  return (
    <div class="tc">
      <div class="tl">
        <Icon name="help" class="m3" />
        <b>{calls.length === 1 ? "Helper" : "Helpers"}</b>
        {calls.length > 1 && (
          <span class="m3">
            {done} of {calls.length} done
          </span>
        )}
        <span class="tl-end">{cost > 0 && <span class="m3 t12">{formatCost(cost)}</span>}</span>
      </div>
      <div class="kids">
        {calls.map((call) => (
          <Helper key={call.call.id} call={call} rev={call.rev} session={found.get(call.call.id)} />
        ))}
      </div>
    </div>
  );
}

/** The sessions that calls of this session have started. */
function findHelpers(id: string): SessionView[] {
  return [...sessions.value.values()].filter((one) => one.parent === id && one.parent_call);
}

interface HelperProps {
  call: CallView;
  rev: number;
  session: SessionView | undefined;
}

function Helper({ call, session }: HelperProps) {
  const { folding, source } = useConversation();
  folding.version.value;
  const status = callStatus(call);
  const key = `c${call.call.id}`;
  const isOpen = folding.isOpen(key, status === "error" || status === "denied");
  const isRunning = status === "running" && !source.isPast;
  const name = (session?.name || describeArgument(call) || call.call.tool).slice(0, 200);
  if (status === "asked" && !source.isPast) return <QuestionCard sessionId={source.sessionId} call={call} />;
  return (
    <>
      <div class="kid-l">
        <HelperIcon status={status} session={session} />
        <button type="button" class="kid-n" aria-expanded={isOpen} onClick={() => folding.set(key, !isOpen)}>
          <span class={isRunning ? "cut w5" : "cut"}>
            <VisibleText text={name} />
          </span>
        </button>
        <Doing call={call} status={status} session={session} />
        <time class="m3 t12">
          {isRunning && call.started ? <Elapsed since={call.started.at} /> : call.finished ? formatDuration(measureDuration(call)) : null}
        </time>
        {isRunning && session && canSend.value ? <StopHelper id={session.id} name={name} /> : <span />}
      </div>
      {isOpen && <ToolBody call={call} status={status} />}
    </>
  );
}

function HelperIcon({ status, session }: { status: CallStatus; session: SessionView | undefined }) {
  if (session && session.asks > 0 && status === "running") return <Icon name="ask" />;
  const [name, ink] = HELPER_ICONS[status];
  return <Icon name={name} class={ink} />;
}

const HELPER_ICONS: Record<CallStatus, [IconName, string]> = {
  queued: ["ring", "m3"], asked: ["ask", ""], allowed: ["run", "acc"], running: ["run", "acc"], ok: ["check", "m3"],
  error: ["fail", "bad"], timed_out: ["fail", "bad"], denied: ["ban", "m3"], refused: ["ban", "m3"],
  cancelled: ["stop", "m3"], interrupted: ["clock", "m3"],
};

const WORDS: Partial<Record<CallStatus, string>> = {
  queued: "waits", ok: "done", error: "failed", timed_out: "took too long", denied: "denied", refused: "refused",
  cancelled: "stopped", interrupted: "unknown, may have run",
};

/** Model and what it does now, as a link to its session. */
function Doing({ call, status, session }: { call: CallView; status: CallStatus; session: SessionView | undefined }) {
  const { source } = useConversation();
  source.liveVersion.value;
  const progress = source.isPast ? undefined : source.live?.progress.get(call.call.id)?.message;
  const turns = session?.turns ? `, ${plural(session.turns, "turn")}` : "";
  const word = status === "running" ? (session && session.asks > 0 ? "needs you" : (progress ?? "running")) : `${WORDS[status] ?? status}${turns}`;
  const text = [session?.model ? formatModel(session.model) : "", word].filter(Boolean).join(" · ");
  if (!session) return <span class="cut m3 t12">{text}</span>;
  return (
    <a class="cut m2 t12" href={buildPath({ page: "session", id: session.id, tab: "conversation", at: null })} title="Open the helper’s session">
      <VisibleText text={text} />
    </a>
  );
}

function StopHelper({ id, name }: { id: string; name: string }) {
  const stop = () => void attempt(() => api.post(sessionPath(id, "/cancel")));
  return (
    <button type="button" class="b bare ico" aria-label={`Stop the helper: ${name}`} title="Stop this helper" onClick={stop}>
      <Icon name="stop" class="sm" />
    </button>
  );
}
