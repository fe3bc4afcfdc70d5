/** The questions of the inbox as a list: open ones first, the longest waiting on top, then those that were answered today. */

import { buildPath } from "../router.ts";
import { everyHalfMinute } from "../ui/clock.ts";
import { formatAge, formatTime, plural } from "../ui/format.ts";
import { Icon } from "../ui/icon.tsx";
import { Menu, type MenuItem } from "../ui/menu.tsx";
import { VisibleText } from "../ui/visible-text.tsx";
import { printSubject, titleAsk, type Ask } from "./ask.ts";
import { findOwner, printOwner, shownSession } from "./inbox-data.ts";
import { NothingOpen } from "./inbox-detail.tsx";
import { printOutcome, type Outcome } from "./outcome.ts";
import { AskCard, OUTCOME_ICONS } from "./question-card.tsx";
import { selectAsk } from "./selection.ts";
import type { Settled } from "./settled.ts";

interface InboxListProps {
  open: readonly Ask[];
  answered: readonly Settled[];
  /** The id of the question beside the list. */
  shown: string;
}

export function InboxList({ open, answered, shown }: InboxListProps) {
  return (
    <section class="side inbox-list" aria-label="Questions">
      <header class="bar">
        <a class="b bare ico narrow-only" aria-label="Sessions" href="/">
          <Icon name="back" />
        </a>
        <h1>Inbox</h1>
        <span class="sp" />
        <SessionFilter open={open} answered={answered} />
      </header>
      <div class="list">
        <h2>Needs you</h2>
        {open.map((ask) => (
          <OpenRow key={ask.id} ask={ask} isShown={ask.id === shown} />
        ))}
        {open.length === 0 && <p class="list-note m2">Nothing needs you</p>}
        <AnsweredRows answered={answered} shown={shown} />
      </div>
    </section>
  );
}

/** Short questions are answered in the list. A longer one has a page. */
export function PhoneList({ open, answered }: Omit<InboxListProps, "shown">) {
  return (
    <main class="side phone-inbox">
      <header class="bar phone-bar">
        <h1>Inbox</h1>
        <span class="sp" />
        {open.length > 0 && <span class="m2">{plural(open.length, "question")}</span>}
        <SessionFilter open={open} answered={answered} />
      </header>
      <div class="list">
        {open.length > 0 ? <h2>Needs you</h2> : <NothingOpen />}
        {open.map((ask) =>
          isShort(ask) ? (
            <AskCard key={ask.id} ask={ask} words="" as="small" where={printPlace(ask)} />
          ) : (
            <OpenRow key={ask.id} ask={ask} isShown={false} />
          ),
        )}
        <AnsweredRows answered={answered} shown="" />
      </div>
    </main>
  );
}

const SHORT = 400;

function isShort(ask: Ask): boolean {
  const text = JSON.stringify(ask.kind === "input" ? ask.questions : ask.arguments);
  return text.length <= SHORT && ask.questions.length <= 1;
}

/** "Session · tool". */
function printPlace(ask: Ask): string {
  return `${printOwner(findOwner(ask.sessionId))} · ${ask.kind === "input" ? "question" : ask.tool}`;
}

function OpenRow({ ask, isShown }: { ask: Ask; isShown: boolean }) {
  const { before, subject, after } = titleAsk(ask);
  return (
    <a
      class="row"
      href={buildPath({ page: "inbox", question: ask.id })}
      data-question={ask.id}
      {...(isShown ? { "aria-current": "page" } : {})}
      onClick={() => selectAsk(ask.id)}
    >
      <Icon name="ask" class="attn" />
      <span class="t cut">
        {before}
        <VisibleText text={subject.slice(0, 200)} />
        {after}
      </span>
      <span class="a">{formatAge(ask.askedAt, everyHalfMinute.value)}</span>
      <span class="m cut">
        <VisibleText text={printPlace(ask)} />
      </span>
      <span class="c" />
    </a>
  );
}

function AnsweredRows({ answered, shown }: { answered: readonly Settled[]; shown: string }) {
  if (answered.length === 0) return null;
  return (
    <>
      <h2>Answered today</h2>
      {answered.map(({ ask, outcome }) => (
        <AnsweredRow key={ask.id} ask={ask} outcome={outcome} isShown={ask.id === shown} />
      ))}
    </>
  );
}

function AnsweredRow({ ask, outcome, isShown }: { ask: Ask; outcome: Outcome; isShown: boolean }) {
  return (
    <a class="row old" href={buildPath({ page: "inbox", question: ask.id })} {...(isShown ? { "aria-current": "page" } : {})}>
      <Icon name={OUTCOME_ICONS[outcome.kind]} class="m3" />
      <span class="t cut">{printSubject(ask)}</span>
      <span class="a">{formatTime(outcome.at)}</span>
      <span class="m cut">
        <VisibleText text={printOutcome(outcome)} />
      </span>
      <span class="c" />
    </a>
  );
}

function SessionFilter({ open, answered }: Omit<InboxListProps, "shown">) {
  const ids = new Set([...open, ...answered.map((one) => one.ask)].map(({ sessionId }) => findOwner(sessionId).parent?.id ?? sessionId));
  const wanted = shownSession.value;
  if (ids.size < 2 && !wanted) return null;
  const choose = (id: string) => () => void (shownSession.value = id);
  const items: MenuItem[] = [{ label: "All sessions", isChecked: !wanted, run: choose("") }];
  for (const id of new Set([...ids, wanted])) {
    if (id) items.push({ label: findOwner(id).name, isChecked: id === wanted, run: choose(id) });
  }
  return (
    <Menu label="Session" items={items} class="chip">
      <span class="cut">{wanted ? findOwner(wanted).name : "All sessions"}</span>
      <Icon name="down" class="sm" />
    </Menu>
  );
}
