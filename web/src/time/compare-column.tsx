/** One side of a comparison: its conversation, its changed files or its waterfall. */

import { signal } from "@preact/signals";
import { useEffect, useMemo, useRef } from "preact/hooks";
import { Conversation, type ConversationSource } from "../session/conversation.tsx";
import type { OpenSession } from "../store/open-session.ts";
import { useChanges } from "../workspace/changes-data.ts";
import { cutView } from "./compare-data.ts";
import type { CompareView } from "./compare-page.tsx";
import { ChangeList } from "./rewind-files.tsx";
import { Waterfall } from "./waterfall.tsx";

interface CompareColumnProps {
  session: OpenSession;
  shown: CompareView;
  /** The position up to which both sessions are the same. */
  common: number;
  /** What both have is shown too. */
  isWhole: boolean;
}

export function CompareColumn({ session, shown, common, isWhole }: CompareColumnProps) {
  if (shown === "files") return <Files session={session} />;
  if (shown === "waterfall") {
    return (
      <div class="cmp-col">
        <Waterfall key={common} facts={session.facts} at={null} version={session.version.value} after={common} onMove={() => undefined} />
      </div>
    );
  }
  return <Talk session={session} after={isWhole ? 0 : common} />;
}

const STILL = signal(0);

function Talk({ session, after }: { session: OpenSession; after: number }) {
  const column = useRef<HTMLDivElement>(null);
  const version = session.version.value;
  const source = useMemo(
    (): ConversationSource => ({ view: cutView(session.view, after), version: STILL, live: null, liveVersion: STILL, sessionId: session.id, isPast: true }),
    [session, after, version],
  );
  const isReady = session.loading.value === "ready";
  useEffect(() => {
    if (!isReady) return undefined;
    // The conversation goes to its end first. Here the reader starts where both part.
    const frame = requestAnimationFrame(() => column.current?.querySelector(".scroll")?.scrollTo({ top: 0 }));
    return () => cancelAnimationFrame(frame);
  }, [isReady, after]);
  return (
    <div ref={column} class="cmp-col">
      {isReady && source.view.items.length === 0 ? <p class="m3 cmp-none">Nothing here: this session ended where they part.</p> : isReady && <Conversation source={source} />}
    </div>
  );
}

function Files({ session }: { session: OpenSession }) {
  session.version.value;
  const { files, error } = useChanges(session, 0);
  return (
    <div class="cmp-col files">
      {error && <p class="bad cmp-none" role="alert">{error}</p>}
      {files?.length === 0 && <p class="m3 cmp-none">No file differs from what it was before the session.</p>}
      {files && <ChangeList changes={files} />}
    </div>
  );
}
