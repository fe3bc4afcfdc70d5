/** A session on the screen: its bar, its conversation or changes, the composer, time, and the rail. */

import { useEffect, useMemo, useState } from "preact/hooks";
import { useKeys } from "../keys.ts";
import { SessionQuestions } from "../questions/session-questions.tsx";
import { buildPath, type SessionTab } from "../router.ts";
import { openedSession, type OpenSession } from "../store/open-session.ts";
import { moveTo } from "../time/actions.ts";
import { PastBanner } from "../time/past-banner.tsx";
import { Strip } from "../time/strip.tsx";
import { Icon } from "../ui/icon.tsx";
import { formatCount } from "../ui/format.ts";
import { lazy } from "../ui/lazy.tsx";
import { Conversation, type ConversationSource } from "./conversation.tsx";
import { Rail } from "./rail.tsx";
import { SessionBar } from "./session-bar.tsx";

const Dock = lazy(
  async () => (await import("../composer/composer.tsx")).Dock,
  <footer class="dock" aria-busy="true">
    <div class="comp waiting" />
  </footer>,
);
const TimePanel = lazy(async () => (await import("../time/time-panel.tsx")).TimePanel);
const ChangesTab = lazy(
  async () => (await import("../workspace/changes-tab.tsx")).ChangesTab,
  <div class="scroll-box" aria-busy="true" />,
);

interface SessionPageProps {
  id: string;
  tab: SessionTab;
  at: number | null;
}

export function SessionPage({ id, tab, at }: SessionPageProps) {
  const session = openedSession.value;
  if (session?.id !== id) return <main class="main" aria-busy="true" />;
  if (session.loading.value === "missing") return <Missing />;
  return <Opened session={session} tab={tab} at={at} />;
}

function Missing() {
  return (
    <main class="main">
      <div class="empty">
        <h1>This session is not here</h1>
        <p class="m2">It was deleted, or the link is not complete.</p>
        <a class="b" href={buildPath({ page: "home" })}>
          All sessions
        </a>
      </div>
    </main>
  );
}

interface OpenedProps {
  session: OpenSession;
  tab: SessionTab;
  at: number | null;
}

function Opened({ session, tab, at }: OpenedProps) {
  const [isRailOpen, setRailOpen] = useState(false);
  const source = useSource(session, at);
  useKeys([
    {
      keys: "Escape", label: "Close the rail", where: "Session", whileTyping: true,
      isActive: () => isRailOpen && matchMedia("(max-width: 1180px)").matches,
      run: () => setRailOpen(false),
    },
  ]);
  session.version.value;
  const isLoading = session.loading.value === "loading";
  const isBeyondEnd = session.loading.value === "ready" && at !== null && at > session.view.seq;
  useEffect(() => void (isBeyondEnd && moveTo(null)), [isBeyondEnd]);
  return (
    <>
      <main class="main">
        <SessionBar session={session} view={source.view} tab={tab} at={at} isRailOpen={isRailOpen} onRail={() => setRailOpen(!isRailOpen)} />
        <PastBanner session={session} at={at} />
        {isLoading ? <Loading session={session} /> : tab === "changes" ? <ChangesTab session={session} at={at} /> : <Conversation key={session.id} source={source} />}
        {!isLoading && at === null && <SessionQuestions session={session} tab={tab} />}
        {!isLoading && tab === "conversation" && <Dock key={`dock ${session.id}`} session={session} at={at} />}
        <Strip session={session} at={at} />
      </main>
      <Rail source={source} isOpen={isRailOpen} onClose={() => setRailOpen(false)} />
      {tab === "time" && <TimePanel session={session} at={at} />}
    </>
  );
}

/** The present, which changes in place, or a moment of the past. */
function useSource(session: OpenSession, at: number | null): ConversationSource {
  // The facts up to the position may still be on their way.
  const loading = session.loading.value;
  return useMemo(() => {
    const { version, liveVersion, live, id } = session;
    if (at === null) return { view: session.view, version, live, liveVersion, sessionId: id, isPast: false };
    return { view: session.viewAt(at), version, live: null, liveVersion, sessionId: id, isPast: true };
  }, [session, at, loading]);
}

/** A long log takes a moment. */
function Loading({ session }: { session: OpenSession }) {
  session.version.value;
  const count = session.facts.length;
  return (
    <div class="scroll-box loading" role="status">
      <Icon name="run" class="acc" />
      <span class="m2">{count > 0 ? `Reading the log, ${formatCount(count)} facts` : "Opening the session"}</span>
    </div>
  );
}
