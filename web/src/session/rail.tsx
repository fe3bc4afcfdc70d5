/** What belongs to a session beside its conversation: plan, context, cost, changed files and long outputs. */

import { useEffect, useState } from "preact/hooks";
import { api, sessionPath } from "../api.ts";
import type { CompactView, ContextView, SessionDetail } from "../generated/api.ts";
import { navigate } from "../router.ts";
import { canSend } from "../store/me.ts";
import { sessions } from "../store/sessions.ts";
import { formatClock, formatCost, formatCount } from "../ui/format.ts";
import { everySecond } from "../ui/clock.ts";
import { Icon } from "../ui/icon.tsx";
import { attempt, showToast } from "../ui/toasts.tsx";
import { VisibleText } from "../ui/visible-text.tsx";
import type { RunView, View } from "../view.ts";
import type { ConversationSource } from "./context.ts";
import { PlanList } from "./plan-list.tsx";

const SHOWN_FILES = 12;
/** From this share on, the context is compacted soon. */
const NEARLY_FULL = 0.85;

interface RailProps {
  source: ConversationSource;
  /** On narrow screens it lies over the page. */
  isOpen?: boolean;
  onClose?: () => void;
}

export function Rail({ source, isOpen = false, onClose }: RailProps) {
  source.version.value;
  const { view, sessionId } = source;
  return (
    <aside class={isOpen ? "rail open" : "rail"} aria-label="About this session">
      {onClose && (
        <button type="button" class="b bare ico rail-close" aria-label="Close" onClick={onClose}>
          <Icon name="x" />
        </button>
      )}
      {view.plan && <Plan steps={view.plan} />}
      <Context source={source} />
      <Cost source={source} />
      <ChangedFiles view={view} sessionId={sessionId} />
    </aside>
  );
}

function Plan({ steps }: { steps: NonNullable<View["plan"]> }) {
  const done = steps.filter((step) => step.status === "done").length;
  return (
    <section>
      <h2>
        Plan{" "}
        <span>
          {done} of {steps.length}
        </span>
      </h2>
      <PlanList steps={steps} />
    </section>
  );
}

interface PartProps {
  source: ConversationSource;
}

const KINDS = [
  ["system", "System"], ["tools", "Tools"], ["skills", "Skills, memory"], ["files", "Files"], ["history", "History"],
] as const;

function Context({ source }: PartProps) {
  source.version.value;
  const { view, sessionId, isPast } = source;
  const context = useContextSizes(view, sessionId, isPast);
  const used = isPast ? view.tokens : (context?.used ?? view.tokens);
  const window = context?.window ?? null;
  const share = window ? used / window : 0;
  if (!context && used === 0) return null;
  return (
    <section>
      <h2>
        Context{" "}
        <span>
          {formatCount(used)}
          {window ? ` of ${formatCount(window)}` : " tokens"}
        </span>
        <span class="sp" />
        {!isPast && canSend.value && view.run === null && view.items.length > 1 && <CompactButton sessionId={sessionId} />}
      </h2>
      {share >= NEARLY_FULL && (
        <p class="note">
          <Icon name="clock" class="sm" />
          It compacts soon.
        </p>
      )}
      {context && <Gauge context={context} isPast={isPast} used={used} />}
    </section>
  );
}

function Gauge({ context, isPast, used }: { context: ContextView; isPast: boolean; used: number }) {
  const whole = context.window ?? Math.max(1, used);
  const others = context.system + context.tools + context.skills + context.files;
  const parts = KINDS.map(([kind, label]) => ({ label, size: isPast && kind === "history" ? Math.max(0, used - others) : context[kind] }));
  // Without the size of the window, the bar shows only how the kinds compare.
  const label = context.window === null ? "The context by kind" : `${Math.round((100 * used) / whole)} percent of the context used`;
  return (
    <>
      <div class="g" role="img" aria-label={label}>
        {parts.map(({ label, size }, at) => (
          <span key={label} class={`gk${at + 1}`} style={{ width: `${Math.min(100, (100 * size) / whole)}%` }} />
        ))}
      </div>
      <div class="leg">
        {parts.map(({ label, size }, at) => (
          <LegendLine key={label} label={label} size={size} at={at} />
        ))}
      </div>
    </>
  );
}

function LegendLine({ label, size, at }: { label: string; size: number; at: number }) {
  return (
    <>
      <i class={`gk${at + 1}`} />
      <span>{label}</span>
      <b>{formatCount(size)}</b>
    </>
  );
}

/** The sizes by kind come from the server: they are asked for again when a turn or a run has ended. */
function useContextSizes(view: View, sessionId: string, isPast: boolean): ContextView | null {
  const [context, setContext] = useState<ContextView | null>(null);
  const moment = isPast ? 0 : (view.last?.seq ?? 0) + (view.run?.turns ?? 0) + view.compacted + view.rewound;
  const isKnown = view.seq > 0;
  useEffect(() => {
    if (!isKnown) return undefined;
    let isGone = false;
    const timer = setTimeout(() => {
      api
        .get<SessionDetail>(sessionPath(sessionId))
        .then((detail) => !isGone && setContext(detail.context))
        .catch(() => undefined);
    }, 150);
    return () => {
      isGone = true;
      clearTimeout(timer);
    };
  }, [sessionId, moment, isKnown]);
  return context;
}

function CompactButton({ sessionId }: { sessionId: string }) {
  const [isBusy, setBusy] = useState(false);
  const compact = async (): Promise<void> => {
    setBusy(true);
    await attempt(async () => {
      const done = await api.post<CompactView>(sessionPath(sessionId, "/compact"));
      if (!done.compacted) showToast("There is nothing to compact yet.");
    });
    setBusy(false);
  };
  return (
    <button type="button" class="chip at-end" disabled={isBusy} onClick={() => void compact()}>
      {isBusy ? "Compacting…" : "Compact"}
    </button>
  );
}

function Cost({ source }: PartProps) {
  source.version.value;
  const { view, sessionId, isPast } = source;
  const { usage, run } = view;
  const limit = run?.limits.cost ?? view.configured?.limits?.cost ?? view.created?.limits?.cost ?? null;
  const helpers = [...sessions.value.values()].filter((one) => one.parent === sessionId && one.parent_call);
  const helperCost = helpers.reduce((sum, one) => sum + one.cost, 0);
  const spent = run && limit ? run.usage.cost : usage.cost;
  const cached = usage.input_tokens > 0 ? Math.round((100 * usage.cached_tokens) / usage.input_tokens) : 0;
  return (
    <section>
      <h2>
        Cost{" "}
        <span>
          {formatCost(spent)}
          {limit ? ` of ${formatCost(limit)}` : ""}
        </span>
      </h2>
      {limit !== null && limit > 0 && (
        <div class="g" role="img" aria-label={`${Math.round((100 * spent) / limit)} percent of the cost limit`}>
          <span class="gk1" style={{ width: `${Math.min(100, (100 * spent) / limit)}%` }} />
        </div>
      )}
      <dl class="kv">
        <Value name="Tokens in" value={formatCount(usage.input_tokens)} />
        {cached > 0 && <Value name="From cache" value={`${cached}\u202f%`} />}
        <Value name="Tokens out" value={formatCount(usage.output_tokens)} />
        {usage.reasoning_tokens > 0 && <Value name="For thoughts" value={formatCount(usage.reasoning_tokens)} />}
        {run && <LimitsLeft run={run} isPast={isPast} />}
        {!isPast && helperCost > 0 && <Value name="Helpers, included" value={formatCost(helperCost)} />}
      </dl>
    </section>
  );
}

function Value({ name, value }: { name: string; value: string }) {
  return (
    <>
      <dt>{name}</dt>
      <dd>{value}</dd>
    </>
  );
}

/** What is left of the run's limits. */
function LimitsLeft({ run, isPast }: { run: RunView; isPast: boolean }) {
  const { limits } = run;
  const left = (used: number, most: number): string => `${formatCount(Math.max(0, most - used))} of ${formatCount(most)}`;
  const tokens = run.usage.input_tokens + run.usage.output_tokens;
  return (
    <>
      <Value name="Turns left" value={left(run.turns, limits.turns)} />
      {run.calls > limits.calls / 2 && <Value name="Calls left" value={left(run.calls, limits.calls)} />}
      {limits.tokens !== null && <Value name="Tokens left" value={left(tokens, limits.tokens)} />}
      {limits.seconds !== null && !isPast && <TimeLeft run={run} seconds={limits.seconds} />}
    </>
  );
}

function TimeLeft({ run, seconds }: { run: RunView; seconds: number }) {
  const used = everySecond.value - run.startedAt - run.waited;
  return <Value name="Time left" value={`${formatClock(seconds - used)} of ${formatClock(seconds)}`} />;
}

function ChangedFiles({ view, sessionId }: { view: View; sessionId: string }) {
  const files = view.changedFiles;
  if (files.length === 0) return null;
  const open = () => navigate({ page: "session", id: sessionId, tab: "changes", at: null });
  return (
    <section>
      <h2>
        Changed files <span>{files.length}</span>
        <span class="sp" />
        <button type="button" class="chip at-end" onClick={open}>
          Open
        </button>
      </h2>
      <div class="files">
        {files.slice(0, SHOWN_FILES).map((path) => (
          <a key={path} href={`/s/${encodeURIComponent(sessionId)}/changes`} title={path}>
            <Icon name="file" class="sm" />
            <span class="cut start">
              <bdi>
                <VisibleText text={path} />
              </bdi>
            </span>
          </a>
        ))}
        {files.length > SHOWN_FILES && (
          <button type="button" class="b bare" onClick={open}>
            {files.length - SHOWN_FILES} more
          </button>
        )}
      </div>
    </section>
  );
}
