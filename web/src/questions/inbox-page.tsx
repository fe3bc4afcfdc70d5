/** The inbox: the open questions of all sessions beside the one that is chosen. On a phone, first one and then the other. */

import { useEffect, useRef } from "preact/hooks";
import { useKeys } from "../keys.ts";
import { isPhone } from "../list/phone.ts";
import { navigate, openSession } from "../router.ts";
import { areSessionsLoaded } from "../store/sessions.ts";
import { useTitle } from "../ui/title.ts";
import type { Ask } from "./ask.ts";
import { InboxDetail, PhoneDetail } from "./inbox-detail.tsx";
import { listAnswered, listOpen, useOwners } from "./inbox-data.ts";
import { InboxList, PhoneList } from "./inbox-list.tsx";
import { onAnswered, selectAsk, selectedAsk, selectNextShown, selectWhenShown } from "./selection.ts";
import { followSettled, loadSettled } from "./settled.ts";

export function InboxPage({ question: id }: { question: string }) {
  useTitle("Inbox");
  useEffect(followSettled, []);
  const isLoaded = areSessionsLoaded.value;
  useEffect(() => void (isLoaded && loadSettled()), [isLoaded]);
  const open = listOpen();
  const answered = listAnswered();
  useOwners([...open, ...answered.map((one) => one.ask)]);
  const place = usePlace(open, id);
  useMoves(open, place, id);
  if (!isLoaded) return <main class="main" aria-busy="true" />;
  if (isPhone.value) return id ? <PhoneDetail key={id} id={id} open={open} /> : <PhoneList open={open} answered={answered} />;
  return (
    <>
      <InboxList open={open} answered={answered} shown={id} />
      <InboxDetail key={id} id={id} open={open} place={place} onMove={(to) => showAsk(to)} />
    </>
  );
}

/** The place of the shown question among the open ones. After its end: the place where it was. */
function usePlace(open: readonly Ask[], id: string): number {
  const last = useRef(0);
  const place = open.findIndex((one) => one.id === id);
  if (place >= 0) last.current = place;
  return place >= 0 ? place : Math.min(last.current, Math.max(0, open.length - 1));
}

/** Show a question, and let the keys answer it. */
function showAsk(ask: Ask | undefined): void {
  navigate({ page: "inbox", question: ask?.id ?? "" }, { replace: true });
  if (ask) selectAsk(ask.id);
}

/** The keys of the inbox, and what comes after an answer. */
function useMoves(open: readonly Ask[], place: number, id: string): void {
  const isWide = !isPhone.value;
  const first = open[0]?.id ?? "";
  // The inbox shows the question that waits longest, and its address says so: the next one must not slip into its place.
  useEffect(() => {
    if (isWide && !id && first) navigate({ page: "inbox", question: first }, { replace: true });
  }, [isWide, id, first]);
  const isOpen = open[place]?.id === id;
  const move = (step: number): void => {
    const next = isOpen ? open[Math.min(Math.max(place + step, 0), open.length - 1)] : open[place];
    if (next) showAsk(next);
  };
  const latest = useRef(open);
  latest.current = open;
  useEffect(() => {
    if (!id) return undefined;
    return onAnswered((answered) => {
      const left = latest.current.filter((one) => one.id !== answered.id);
      showAsk(isPhone.peek() ? undefined : (left[place] ?? left.at(-1)));
    });
  }, [id, place]);
  const where = "Inbox";
  const isActive = (): boolean => isWide && open.length > 0;
  const mayOpen = (): boolean => isOpen && !(open[place]?.kind === "input" && selectedAsk.peek() === id);
  useKeys([
    { keys: "j", label: "Next question", where, isActive, run: () => move(1) },
    { keys: "k", label: "Previous question", where, isActive, run: () => move(-1) },
    { keys: "q", label: "Select the question", where, isActive, run: () => void selectNextShown() },
    { keys: "Enter", label: "Open the session at the question", where, isActive: mayOpen, run: () => openAt(open[place]) },
  ]);
}

/** Questions stand at the end of the conversation, where a session opens. The question is selected there. */
function openAt(ask: Ask | undefined): void {
  if (!ask) return;
  openSession(ask.sessionId);
  selectWhenShown(ask.id);
}
