/** Two sessions side by side: equal up to where they part, and then each its own way. */

import { useSignal } from "@preact/signals";
import { useEffect, useRef, useState } from "preact/hooks";
import { useKeys } from "../keys.ts";
import { isPhone } from "../list/phone.ts";
import { nameOpenSession } from "../list/session-status.ts";
import { openSession } from "../router.ts";
import type { OpenSession } from "../store/open-session.ts";
import { sessions } from "../store/sessions.ts";
import { formatCost, plural } from "../ui/format.ts";
import { Icon } from "../ui/icon.tsx";
import { useTitle } from "../ui/title.ts";
import { CompareColumn } from "./compare-column.tsx";
import { countFacts, useCommon, useSession } from "./compare-data.ts";
import { CompareHead } from "./compare-head.tsx";
import { Segments } from "./segments.tsx";

interface ComparePageProps {
  left: string;
  right: string;
}

export type CompareView = "conversation" | "files" | "waterfall";

const VIEWS = [["conversation", "Conversation"], ["files", "Files"], ["waterfall", "Waterfall"]] as const;

export function ComparePage({ left, right }: ComparePageProps) {
  const a = useSession(left);
  const b = useSession(right);
  const isMissing = [a, b].some((one) => one?.loading.value === "missing");
  const [shown, setShown] = useState<CompareView>("conversation");
  const close = (): void => openSession(left);
  const views = <Segments label="What is compared" options={VIEWS} value={shown} onChange={setShown} />;
  useKeys([{ keys: "Escape", label: "Close the comparison", where: "Compare", run: close }]);
  useTitle("Compare");
  return (
    <main class="main">
      <header class="bar">
        <h1>Compare</h1>
        {!isPhone.value && <span class="status cut">{describePair(left, right)}</span>}
        <span class="sp" />
        {!isPhone.value && views}
        <button type="button" class="b bare ico" aria-label="Close" onClick={close}>
          <Icon name="x" />
        </button>
      </header>
      {isPhone.value && <div class="cmp-side">{views}</div>}
      {isMissing ? (
        <p class="m3 cmp-none">One of these sessions is not here. It was deleted, or the link is not complete.</p>
      ) : a && b ? (
        <Pair key={`${left} ${right}`} a={a} b={b} shown={shown} />
      ) : (
        <p class="m3 cmp-none">Opening the sessions…</p>
      )}
    </main>
  );
}

function describePair(left: string, right: string): string {
  const [a, b] = [sessions.value.get(left), sessions.value.get(right)];
  if (b?.parent === left) return `a fork of “${a?.name ?? ""}”`;
  if (a?.parent === right) return `a fork of “${b?.name ?? ""}”`;
  if (a?.parent && a.parent === b?.parent) return `two forks of “${sessions.value.get(a.parent)?.name ?? "one session"}”`;
  return "two sessions";
}

interface PairProps {
  a: OpenSession;
  b: OpenSession;
  shown: CompareView;
}

function Pair({ a, b, shown }: PairProps) {
  const common = useCommon(a, b);
  const [isWhole, setWhole] = useState(false);
  const side = useSignal<"a" | "b">("a");
  const columns = useRef<HTMLDivElement>(null);
  useTogether(columns, shown);
  const only = isPhone.value ? side.value : null;
  return (
    <>
      {isPhone.value && (
        <div class="cmp-side">
          <Segments label="Which session" options={[["a", nameOf(a)], ["b", nameOf(b)]]} value={side.value} onChange={(next) => (side.value = next)} />
        </div>
      )}
      <div class="cr head">
        {only !== "b" && <CompareHead session={a} other={b.id} side="left" />}
        {only !== "a" && <CompareHead session={b} other={a.id} side="right" />}
      </div>
      {common > 0 && shown === "conversation" && (
        <Trunk session={a} common={common} isWhole={isWhole} onToggle={() => setWhole(!isWhole)} />
      )}
      <div ref={columns} class="cmp">
        {only !== "b" && <CompareColumn session={a} shown={shown} common={common} isWhole={isWhole} />}
        {only !== "a" && <CompareColumn session={b} shown={shown} common={common} isWhole={isWhole} />}
      </div>
    </>
  );
}

function nameOf(session: OpenSession): string {
  return session.version.value >= 0 ? nameOpenSession(session) : "";
}

interface TrunkProps {
  session: OpenSession;
  common: number;
  isWhole: boolean;
  onToggle: () => void;
}

/** What both have. Unfolded, both columns start at the beginning. */
function Trunk({ session, common, isWhole, onToggle }: TrunkProps) {
  const { messages, turns, calls, cost } = countFacts(session.facts, common);
  const parts = [plural(messages, "message"), plural(turns, "turn"), plural(calls, "call"), cost > 0 ? formatCost(cost) : ""];
  return (
    <>
      <button type="button" class="trunk" aria-expanded={isWhole} onClick={onToggle}>
        <Icon name={isWhole ? "down" : "chev"} class="sm" />
        <span>The same up to fact {common}</span>
        <span class="m3 cut">{parts.filter(Boolean).join(", ")}</span>
      </button>
      {!isWhole && (
        <div class="part">
          <span>
            <Icon name="fork" class="sm" />
            Here they part, fact {common + 1}
          </span>
        </div>
      )}
    </>
  );
}

/** Both columns scroll together, and start at their beginning. */
function useTogether(box: { current: HTMLDivElement | null }, shown: CompareView): void {
  useEffect(() => {
    const element = box.current;
    if (!element) return undefined;
    let leader: EventTarget | null = null;
    let timer: ReturnType<typeof setTimeout> | undefined;
    const follow = (event: Event): void => {
      const from = event.target;
      if (!(from instanceof HTMLElement) || (leader && leader !== from)) return;
      leader = from;
      clearTimeout(timer);
      timer = setTimeout(() => (leader = null), 120);
      for (const other of element.querySelectorAll<HTMLElement>(".cmp-col .scroll, .cmp-col.files, .cmp-col .wf")) {
        if (other !== from && other.closest(".cmp-col") !== from.closest(".cmp-col")) other.scrollTop = from.scrollTop;
      }
    };
    element.addEventListener("scroll", follow, { capture: true, passive: true });
    return () => {
      clearTimeout(timer);
      element.removeEventListener("scroll", follow, { capture: true });
    };
  }, [box, shown]);
}
