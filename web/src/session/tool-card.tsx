/** The card of one call: a quiet line that unfolds. What runs, failed or asks is open by itself. */

import { api, sessionPath } from "../api.ts";
import { callStatus } from "../fold.ts";
import { canApprove, canSend } from "../store/me.ts";
import { formatDuration } from "../ui/format.ts";
import { VisibleText } from "../ui/visible-text.tsx";
import { attempt } from "../ui/toasts.tsx";
import { AnsweredLine } from "../questions/answered.tsx";
import { readOutcome } from "../questions/outcome.ts";
import { AnsweredCard, QuestionCard } from "../questions/question-card.tsx";
import { DiffNumbers } from "../workspace/diff.tsx";
import type { CallStatus, CallView } from "../view.ts";
import { useConversation } from "./context.ts";
import { Elapsed } from "./elapsed.tsx";
import { FoldLine } from "./fold-line.tsx";
import { ToolBody } from "./tool-body.tsx";
import { chooseIcon, describeArgument, describeResult, measureDuration, opensByItself, type Fact } from "./tool-text.ts";

const LONGEST_LINE = 300;

interface ToolCardProps {
  call: CallView;
  /** The call is changed in place: another number means that it has changed. */
  rev: number;
  isNested?: boolean;
}

export function ToolCard({ call, isNested = false }: ToolCardProps) {
  const { folding, source } = useConversation();
  folding.version.value;
  const status = callStatus(call);
  const key = `c${call.call.id}`;
  const isAsking = status === "asked" && !source.isPast;
  const isOpen = isAsking ? isInputOpen(call) : folding.isOpen(key, opensByItself(status));
  const toggle = () => folding.set(key, !isOpen);
  if (isAsking) return <QuestionCard sessionId={source.sessionId} call={call} />;
  return (
    <div class={`tc ${CLASSES[status] ?? ""}${isNested ? " nested" : ""}`}>
      <AnsweredCard sessionId={source.sessionId} call={call} />
      <FoldLine
        icon={chooseIcon(call)}
        iconClass={ICON_CLASSES[status] ?? "m3"}
        name={call.call.tool}
        meta={<Meta call={call} status={status} />}
        time={<CallTime call={call} status={status} />}
        isOpen={isOpen}
        onToggle={toggle}
      >
        <code class="cut">
          <VisibleText text={describeArgument(call).slice(0, LONGEST_LINE).replaceAll("\n", " ")} />
        </code>
      </FoldLine>
      {status === "running" && !source.isPast && canSend.value && <StopButton sessionId={source.sessionId} />}
      {isOpen && <ToolBody call={call} status={status} />}
      {call.requests.map((request) => (
        <Request key={request.call.id} request={request} rev={request.rev} />
      ))}
    </div>
  );
}

const CLASSES: Partial<Record<CallStatus, string>> = { running: "run", error: "fail", timed_out: "fail" };
const ICON_CLASSES: Partial<Record<CallStatus, string>> = { running: "acc", allowed: "acc", error: "bad", timed_out: "bad", asked: "attn" };

function isInputOpen(call: CallView): boolean {
  return call.inputAsked !== null && call.inputAnswer === null;
}

function Meta({ call, status }: { call: CallView; status: CallStatus }) {
  const fact = describeResult(call);
  return (
    <>
      {(status === "ok" || status === "denied") && <Who call={call} status={status} />}
      {fact && status !== "denied" && <Result fact={fact} />}
    </>
  );
}

/** Who allowed or denied it. A person's answer stands on the line. */
function Who({ call, status }: { call: CallView; status: CallStatus }) {
  const outcome = readOutcome(call);
  if (outcome?.kind === "answered") return <AnsweredLine call={call} />;
  if (outcome && outcome.kind !== "gone") return <span class="who-did m3">{`${outcome.title} ${outcome.who}`.trim()}</span>;
  return status === "denied" ? <span class="tag m2">Denied by a rule</span> : null;
}

function Result({ fact }: { fact: Fact }) {
  if (fact.added !== undefined) return <DiffNumbers added={fact.added} removed={fact.removed ?? 0} />;
  return <span class={fact.isBad ? "tag bad" : "tag m2"}>{fact.text}</span>;
}

function CallTime({ call, status }: { call: CallView; status: CallStatus }) {
  const { source } = useConversation();
  if (status === "running" && call.started) {
    return source.isPast ? null : <Elapsed since={call.started.at} />;
  }
  const seconds = status === "interrupted" ? 0 : measureDuration(call);
  return call.started && seconds >= 0.05 ? <>{formatDuration(seconds)}</> : null;
}

/** It stops the run: the server settles the call first. */
function StopButton({ sessionId }: { sessionId: string }) {
  const stop = () => void attempt(() => api.post(sessionPath(sessionId, "/cancel")));
  return (
    <button type="button" class="chip tc-stop" onClick={stop}>
      Stop
    </button>
  );
}

/** What a running call asked for, such as a host. */
function Request({ request }: { request: CallView; rev: number }) {
  const { source } = useConversation();
  if (callStatus(request) === "asked" && !source.isPast && canApprove.value !== undefined) {
    return <QuestionCard sessionId={source.sessionId} call={request} />;
  }
  return (
    <>
      <AnsweredCard sessionId={source.sessionId} call={request} />
      <div class="note tc-request">
        <AnsweredLine call={request} />
      </div>
    </>
  );
}
