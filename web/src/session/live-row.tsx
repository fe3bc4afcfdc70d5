/** The end of the conversation while the model works: waiting, a retry ahead, thinking, and the reply that streams in. */

import { api, sessionPath } from "../api.ts";
import type { ModelFailed } from "../generated/events.ts";
import { Markdown } from "../markdown/markdown.tsx";
import { connection } from "../store/connection.ts";
import { canSend } from "../store/me.ts";
import type { Live, LiveCall } from "../store/live.ts";
import { everySecond } from "../ui/clock.ts";
import { formatClock, formatModel, formatTime } from "../ui/format.ts";
import { Icon } from "../ui/icon.tsx";
import { attempt } from "../ui/toasts.tsx";
import { VisibleText } from "../ui/visible-text.tsx";
import type { TurnItem, View } from "../view.ts";
import { useConversation } from "./context.ts";
import { Elapsed } from "./elapsed.tsx";
import { FoldLine } from "./fold-line.tsx";
import { describeNextTry, nameFailure } from "./notice-text.ts";
import { useSteadyText } from "./steady-text.ts";

export function LiveRow() {
  const { source } = useConversation();
  source.version.value;
  const { view, isPast } = source;
  const { run, turn } = view;
  if (run === null) return null;
  if (turn === null || turn.reply === null) return <Turn view={view} turn={turn} isPast={isPast} />;
  return run.isStopping && !isPast ? <Doing text="Stopping" since={view.at} /> : null;
}

function Turn({ view, turn, isPast }: { view: View; turn: TurnItem | null; isPast: boolean }) {
  const failure = turn?.failures.at(-1);
  if (isPast) return <p class="m3 live-note">{failure ? `${nameFailure(failure)}.` : "The model was writing."}</p>;
  if (view.run?.isStopping) return <Doing text="Stopping" since={view.at} />;
  if (turn !== null && turn.retryAt !== null && failure) return <Retry failure={failure} retryAt={turn.retryAt} view={view} />;
  return <Writing model={view.model} since={turn?.startedAt ?? view.run?.startedAt ?? view.at} />;
}

function Doing({ text, since }: { text: string; since: number }) {
  return (
    <div class="tl live-note" role="status">
      <Icon name="run" class="acc" />
      <span class="m2">{text}</span>
      <span class="tl-end">
        <time>
          <Elapsed since={since} />
        </time>
      </span>
    </div>
  );
}

function Retry({ failure, retryAt, view }: { failure: ModelFailed; retryAt: number; view: View }) {
  const { source } = useConversation();
  const isOffline = connection.value === "offline";
  const retry = () => void attempt(() => api.post(sessionPath(source.sessionId, "/retry")));
  const next = isOffline
    ? `The next try was due at ${formatTime(retryAt, { seconds: true })}.`
    : describeNextTry(failure, view.run, retryAt - everySecond.value);
  return (
    <div class="ban in" role="status">
      <Icon name="clock" />
      <span class="tx">
        <b class="w5">{nameFailure(failure)}.</b>{" "}
        <span class="m2" aria-live="off">
          {next} Nothing is lost.
        </span>
        {failure.message && (
          <span class="ban-detail m3">
            <VisibleText text={failure.message} />
          </span>
        )}
      </span>
      {canSend.value && (
        <button type="button" class="b" disabled={isOffline} onClick={retry}>
          Retry now
        </button>
      )}
    </div>
  );
}

/** What has streamed in so far. */
function Writing({ model, since }: { model: string; since: number }) {
  const { source } = useConversation();
  source.liveVersion.value;
  const { live } = source;
  const calls = live?.calls.filter((call) => call?.tool) ?? [];
  if (!live || (!live.text && !live.reasoning && calls.length === 0)) {
    return <Doing text={`Waiting for ${formatModel(model) || "the model"}`} since={since} />;
  }
  return (
    <>
      {live.reasoning && <Thinking live={live} />}
      {live.text && <LiveText text={live.text} isOpen={calls.length === 0} />}
      {calls.map((call, at) => (
        <WritingCall key={at} call={call} />
      ))}
    </>
  );
}

function LiveText({ text, isOpen }: { text: string; isOpen: boolean }) {
  const shown = useSteadyText(text);
  return (
    <article class={isOpen ? "md live" : "md"} aria-label="Reply">
      <Markdown text={shown} live />
    </article>
  );
}

/** The thought under way. Its time is known only while the page sees it. */
function Thinking({ live }: { live: Live }) {
  const { folding, source } = useConversation();
  folding.version.value;
  source.liveVersion.value;
  const isOpen = folding.isOpen("live-thought", false);
  const isDone = live.textAt > 0;
  const seconds = isDone ? (live.textAt - live.reasoningAt) / 1000 : (everySecond.value, (performance.now() - live.reasoningAt) / 1000);
  const last = live.reasoning.trimEnd().split("\n").at(-1) ?? "";
  return (
    <div class="tc">
      <FoldLine
        icon={isDone ? "think" : "run"}
        iconClass={isDone ? "m3" : "acc"}
        name={isDone ? "Thought" : "Thinking"}
        isOpen={isOpen}
        onToggle={() => folding.set("live-thought", !isOpen)}
        time={formatClock(seconds)}
      >
        <span class="m3 cut">{last.slice(-200)}</span>
      </FoldLine>
      {isOpen && <div class="tc-b thought you-text">{live.reasoning}</div>}
    </div>
  );
}

/** A call that the model is still writing. */
function WritingCall({ call }: { call: LiveCall }) {
  return (
    <div class="tl live-note">
      <Icon name="run" class="acc" />
      <b>{call.tool}</b>
      <code class="cut m3">
        <VisibleText text={call.arguments.slice(-160)} />
      </code>
    </div>
  );
}
