/** An exported session: what it was about, where its time went, and the whole conversation. */

import { signal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useMemo, useState } from "preact/hooks";
import { foldTo } from "../fold.ts";
import type { AnyFact } from "../generated/events.ts";
import { Conversation, type ConversationSource } from "../session/conversation.tsx";
import { Folding } from "../session/folding.ts";
import { PlanList } from "../session/plan-list.tsx";
import { Waterfall } from "../time/waterfall.tsx";
import { formatCost, formatCount, formatDuration, formatModel, plural } from "../ui/format.ts";
import { Icon } from "../ui/icon.tsx";
import { VisibleText } from "../ui/visible-text.tsx";
import type { View } from "../view.ts";
import { showPosition } from "./all-rows.tsx";
import type { ExportDocument } from "./document.ts";

export function ExportPage({ document: { facts } }: { document: ExportDocument }) {
  const view = useMemo(() => foldTo(facts, Infinity), [facts]);
  const folding = useMemo(() => new Folding(), []);
  const source = useMemo(() => buildSource(view), [view]);
  const title = view.name || "A session";
  document.title = `${title}, treadle`;
  return (
    <div class="ex">
      <Head title={title} view={view} facts={facts} folding={folding} />
      <div class="ex-body">
        <main class="ex-main">
          <Conversation source={source} folding={folding} />
        </main>
        <aside class="ex-side" aria-label="About this session">
          {view.plan && <Part title="Plan"><PlanList steps={view.plan} /></Part>}
          <Part title="Cost" note={formatCost(view.usage.cost)}><Numbers view={view} /></Part>
          {view.changedFiles.length > 0 && <ChangedFiles paths={view.changedFiles} />}
        </aside>
      </div>
    </div>
  );
}

function buildSource(view: View): ConversationSource {
  const sessionId = view.created?.session_id ?? "";
  return { view, version: signal(0), live: null, liveVersion: signal(0), sessionId, isPast: true };
}

interface HeadProps {
  title: string;
  view: View;
  facts: readonly AnyFact[];
  folding: Folding;
}

function Head({ title, view, facts, folding }: HeadProps) {
  const [at, setAt] = useState<number | null>(null);
  const move = (to: number | null): void => {
    setAt(to);
    showPosition(to ?? view.seq);
  };
  return (
    <header class="ex-head">
      <div class="ex-title">
        <h1>
          <VisibleText text={title} />
        </h1>
        <div class="ex-acts">
          <button type="button" class="b" aria-pressed={folding.isAllOpen.value} onClick={() => folding.toggleAll()}>
            {folding.isAllOpen.value ? "Fold all" : "Unfold all"}
          </button>
          <button type="button" class="b" onClick={() => print()}>
            Print
          </button>
        </div>
      </div>
      <p class="ex-about m2">
        {describe(view, facts).join(" · ")}
        {view.created?.workspace && " · "}
        <VisibleText text={view.created?.workspace ?? ""} />
      </p>
      {view.runs > 0 && (
        <details class="ex-time">
          <summary>
            <Icon name="chev" class="sm" />
            Where the time went
          </summary>
          <Waterfall facts={facts} at={at} after={at === null ? 1 : 0} onMove={move} />
        </details>
      )}
    </header>
  );
}

/** When, who and how long. */
function describe(view: View, facts: readonly AnyFact[]): string[] {
  const [first, last] = [facts[0]?.at ?? 0, facts.at(-1)?.at ?? 0];
  const begun = new Date(first * 1000).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "short" });
  return [
    begun, view.agent, formatModel(view.model), plural(view.runs, "run"), formatDuration(last - first), describeEnd(view),
  ].filter(Boolean);
}

function describeEnd(view: View): string {
  if (view.run !== null) return "exported while it ran";
  return view.last === null || view.last.reason === "answered" ? "" : `ended: ${view.last.reason.replaceAll("_", " ")}`;
}

function Part({ title, note = "", children }: { title: string; note?: string; children: ComponentChildren }) {
  return (
    <section>
      <h2>
        {title} {note && <span>{note}</span>}
      </h2>
      {children}
    </section>
  );
}

function Numbers({ view: { usage, calls, rewound, compacted } }: { view: View }) {
  const rows: [string, number][] = [
    ["Tokens in", usage.input_tokens], ["From cache", usage.cached_tokens], ["Tokens out", usage.output_tokens],
    ["For thoughts", usage.reasoning_tokens], ["Calls", calls.size], ["Rewound", rewound], ["Compacted", compacted],
  ];
  return (
    <dl class="kv">
      {rows.filter(([, value]) => value > 0).map(([name, value]) => [<dt>{name}</dt>, <dd>{formatCount(value)}</dd>])}
    </dl>
  );
}

function ChangedFiles({ paths }: { paths: readonly string[] }) {
  return (
    <Part title="Changed files" note={String(paths.length)}>
      <ul class="ex-files">
        {paths.map((path) => (
          <li key={path} class="mono">
            <VisibleText text={path} />
          </li>
        ))}
      </ul>
    </Part>
  );
}
