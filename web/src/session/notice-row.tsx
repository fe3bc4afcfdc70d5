/** Lines that are neither a message nor a reply: compacted, rewound, retried, and how a run ended. */

import { api, sessionPath } from "../api.ts";
import type { ContextCompacted, RunFinished } from "../generated/events.ts";
import type { CompactView } from "../generated/api.ts";
import { canSend } from "../store/me.ts";
import { copyText } from "../ui/copy-button.tsx";
import { formatCount } from "../ui/format.ts";
import { Icon, type IconName } from "../ui/icon.tsx";
import { attempt, showToast } from "../ui/toasts.tsx";
import { VisibleText } from "../ui/visible-text.tsx";
import { navigate } from "../router.ts";
import type { NoticeItem, TurnItem } from "../view.ts";
import { useConversation } from "./context.ts";
import { describeEffort, describeEnding, describeNotice, describeRetries } from "./notice-text.ts";

interface NoticeRowProps {
  item: NoticeItem;
  startedAt: number;
}

export function NoticeRow({ item, startedAt }: NoticeRowProps) {
  const { fact } = item;
  if (fact.type === "run_finished") return <RunEnd fact={fact} startedAt={startedAt} />;
  if (fact.type === "context_compacted" && fact.kind !== "undo") return <Compacted fact={fact} />;
  const detail = fact.type === "signal_detected" ? fact.detail : "";
  return <QuietLine icon={fact.type === "rewound" ? "rew" : "sliders"} text={describeNotice(item)} detail={detail} />;
}

export function RetriesRow({ item }: { item: TurnItem }) {
  return <QuietLine icon="clock" text={describeRetries(item)} />;
}

interface QuietLineProps {
  icon: IconName;
  text: string;
  /** What a hook or a model wrote. */
  detail?: string | undefined;
}

function QuietLine({ icon, text, detail }: QuietLineProps) {
  return (
    <div class="tl quiet">
      <Icon name={icon} class="m3" />
      <span class="m3">
        {text} {detail && <VisibleText text={detail} />}
      </span>
    </div>
  );
}

function Compacted({ fact }: { fact: ContextCompacted }) {
  const { source } = useConversation();
  source.version.value;
  const isLast = source.view.inner.compactions.at(-1)?.seq === fact.seq;
  const mayUndo = isLast && !source.isPast && canSend.value && source.view.run === null;
  const undo = () => void attempt(() => api.post<CompactView>(sessionPath(source.sessionId, "/compact"), { undo: true }));
  const [before, after] = [formatCount(fact.tokens_before ?? 0), formatCount(fact.tokens_after ?? 0)];
  return (
    <div class="ban in">
      <Icon name="think" />
      <span class="tx">
        <b class="w5">
          Context was compacted, {before} to {after}.
        </b>{" "}
        <span class="m2">The whole of it stays in the log.</span>
      </span>
      {mayUndo && (
        <button type="button" class="b bare" onClick={undo}>
          Undo
        </button>
      )}
    </div>
  );
}

/** How a run ended. A short answer needs no word. */
function RunEnd({ fact, startedAt }: { fact: RunFinished; startedAt: number }) {
  const { source } = useConversation();
  source.version.value;
  const ending = describeEnding(fact);
  const isLast = source.view.last?.seq === fact.seq && source.view.run === null;
  const effort = describeEffort(fact, startedAt);
  const hasButtons = isLast && !source.isPast && (fact.can_continue || fact.reason === "failed" || source.view.changedFiles.length > 0);
  if (fact.reason === "answered" && !isLast) return <QuietLine icon="check" text={`Done. ${effort}`} />;
  return (
    <section class="endcard">
      <h2>
        <Icon name={ending.icon} class={ending.iconClass} />
        {ending.title}
        {!hasButtons && <EndEffort text={effort} />}
      </h2>
      {ending.text && (
        <p class="m2">
          <VisibleText text={ending.text} />
        </p>
      )}
      {hasButtons && (
        <div class="acts">
          <EndButtons fact={fact} />
          <EndEffort text={effort} />
        </div>
      )}
    </section>
  );
}

function EndEffort({ text }: { text: string }) {
  return <span class="effort m3 t12">{text}</span>;
}

function EndButtons({ fact }: { fact: RunFinished }) {
  const { source } = useConversation();
  const { sessionId, view } = source;
  const resume = () => void attempt(() => api.post(sessionPath(sessionId, "/continue")));
  const isFailed = fact.reason === "failed";
  const mayContinue = fact.can_continue && canSend.value;
  const copy = () => void copyText(fact.error ?? "").then((isDone) => isDone && showToast("Copied."));
  return (
    <>
      {mayContinue && (
        <button type="button" class={isFailed || fact.reason === "cancelled" ? "b" : "b pri"} onClick={resume}>
          <Icon name="play" class="sm" />
          {nameContinue(fact)}
        </button>
      )}
      {isFailed && fact.error && (
        <button type="button" class="b bare" onClick={copy}>
          Copy details
        </button>
      )}
      {view.changedFiles.length > 0 && (
        <button type="button" class="b bare" onClick={() => navigate({ page: "session", id: sessionId, tab: "changes", at: null })}>
          Open changes
        </button>
      )}
    </>
  );
}

function nameContinue(fact: RunFinished): string {
  if (fact.reason === "failed") return "Try again";
  if (fact.reason === "turn_limit" && fact.turns) return `Continue with ${fact.turns} more turns`;
  return "Continue";
}
