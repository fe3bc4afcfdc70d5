/** One question of the inbox, with what the agent said before it, or how it ended. */

import { useEffect, useState } from "preact/hooks";
import { findStanding, nameWorkspace } from "../list/session-status.ts";
import { buildPath } from "../router.ts";
import { sessions } from "../store/sessions.ts";
import { plural } from "../ui/format.ts";
import { Icon } from "../ui/icon.tsx";
import { VisibleText } from "../ui/visible-text.tsx";
import { isAnsweredHere } from "./answers.ts";
import type { Ask } from "./ask.ts";
import { findOwner, useWords, type Owner } from "./inbox-data.ts";
import { AskCard, DoneCard } from "./question-card.tsx";
import { search, settled } from "./settled.ts";

interface InboxDetailProps {
  /** The question of the address. Empty when none is open. */
  id: string;
  open: readonly Ask[];
  place: number;
  onMove: (to: Ask) => void;
}

export function InboxDetail({ id, open, place, onMove }: InboxDetailProps) {
  if (!id) {
    return (
      <main class="main center">
        <NothingOpen />
      </main>
    );
  }
  const ask = open.find((one) => one.id === id);
  const owner = findOwner(readSessionId(id));
  const next = ask ? undefined : open[place];
  return (
    <main class="main">
      <header class="bar">
        <h2 class="cut">{owner.name}</h2>
        <OwnerLine owner={owner} />
        <span class="sp" />
        {ask && open.length > 1 && (
          <span class="m3 t12 keys-hint">
            {place + 1} of {open.length} <kbd>J</kbd> <kbd>K</kbd>
          </span>
        )}
        <SessionLink owner={owner} />
      </header>
      <div class="scroll top">
        <div class="col inbox-col">
          {ask ? <WideQuestion ask={ask} /> : <Ended id={id} />}
          {next && (
            <button type="button" class="b" onClick={() => onMove(next)}>
              Next question <kbd>J</kbd>
            </button>
          )}
        </div>
      </div>
    </main>
  );
}

function WideQuestion({ ask }: { ask: Ask }) {
  const words = useWords(ask);
  return (
    <>
      {words && (
        <>
          <p class="m3 t12">The agent said before</p>
          <p class="q-words">
            “<VisibleText text={words} />”
          </p>
        </>
      )}
      <AskCard ask={ask} words="" />
    </>
  );
}

export function PhoneDetail({ id, open }: { id: string; open: readonly Ask[] }) {
  const ask = open.find((one) => one.id === id);
  const owner = findOwner(readSessionId(id));
  return (
    <main class="main">
      <header class="bar">
        <a class="b bare ico" aria-label="Back to the inbox" href="/inbox">
          <Icon name="back" />
        </a>
        <div class="ti">
          <h1>{owner.name}</h1>
          <OwnerLine owner={owner} />
        </div>
        <SessionLink owner={owner} />
      </header>
      {ask ? (
        <PhoneQuestion ask={ask} />
      ) : (
        <div class="col">
          <Ended id={id} />
        </div>
      )}
    </main>
  );
}

function PhoneQuestion({ ask }: { ask: Ask }) {
  return <AskCard ask={ask} words={useWords(ask)} as="page" />;
}

/** "Helper of Name", or the workspace and the agent. */
function OwnerLine({ owner: { session, parent, parentName } }: { owner: Owner }) {
  if (!session) return null;
  if (!parent) return <span class="status cut">{[nameWorkspace(session.workspace), session.agent].filter(Boolean).join(" · ")}</span>;
  return (
    <span class="status cut">
      Helper of{" "}
      <a class="acc" href={buildPath({ page: "session", id: parent.id, tab: "conversation", at: null })}>
        {parentName}
      </a>
    </span>
  );
}

function SessionLink({ owner: { session } }: { owner: Owner }) {
  if (!session) return null;
  return (
    <a class="b bare" href={buildPath({ page: "session", id: session.id, tab: "conversation", at: null })}>
      <Icon name="out" />
      Open session
    </a>
  );
}

/** How a question ended that is not open any more. */
function Ended({ id }: { id: string }) {
  const ended = settled.value.get(id);
  const sessionId = readSessionId(id);
  const { session, name } = findOwner(sessionId);
  const [isSearched, setSearched] = useState(false);
  useEffect(() => {
    if (ended) return;
    const end = session ? search(session) : Promise.resolve();
    void end.then(() => setSearched(true));
  }, [id, session?.seq]);
  if (ended) return <DoneCard ask={ended.ask} outcome={ended.outcome} isOther={ended.wasShown && !isAnsweredHere(id)} />;
  if (!isSearched) return null;
  return (
    <div class="empty">
      <Icon name="clock" />
      <h2>This question is not open any more</h2>
      <p class="m2">{session ? `The log of “${name}” says how it ended.` : "Its session is not here. It was deleted, or the link is not complete."}</p>
    </div>
  );
}

export function NothingOpen() {
  const running = [...sessions.value.values()].filter((one) => findStanding(one) === "running").length;
  return (
    <div class="empty">
      <Icon name="check" />
      <h2>Nothing needs you</h2>
      <p class="m2">{running > 0 ? `${plural(running, "session is", "sessions are")} running.` : "No session is running."}</p>
    </div>
  );
}

/** The id of a question begins with that of its session. */
function readSessionId(id: string): string {
  return id.slice(0, id.indexOf("/"));
}
