/** A question to a person, as a card in the conversation, in the inbox, or as a sheet on a phone. */

import { useEffect, useRef } from "preact/hooks";
import type { PendingQuestion } from "../generated/api.ts";
import { openedSession } from "../store/open-session.ts";
import { Icon } from "../ui/icon.tsx";
import { formatTime } from "../ui/format.ts";
import { VisibleText } from "../ui/visible-text.tsx";
import type { CallView } from "../view.ts";
import { ApprovalPanel } from "./approval-panel.tsx";
import { printSubject, printTitle, readAsk, readPending, type Ask } from "./ask.ts";
import { InputPanel } from "./input-panel.tsx";
import { readOutcome, type Outcome } from "./outcome.ts";
import { isPhone } from "../list/phone.ts";
import { noteShown, selectedAsk } from "./selection.ts";
import { cutWords } from "./tail.ts";

interface QuestionCardProps {
  sessionId: string;
  call: CallView;
}

/** The question of a call, or of what a running call asks for. On a phone it is in the sheet. */
export function QuestionCard({ sessionId, call }: QuestionCardProps) {
  const fact = call.asked ?? call.inputAsked;
  if (!fact) return null;
  const ask = readAsk(sessionId, fact);
  const outcome = readOutcome(call);
  if (outcome) return <DoneCard ask={ask} outcome={outcome} />;
  return isPhone.value ? <AskLine ask={ask} /> : <AskCard ask={ask} words={findTurnWords(call)} />;
}

/** What the model said in the reply that has the call. */
export function findTurnWords(call: CallView): string {
  const items = openedSession.peek()?.view.items ?? [];
  const turn = items.findLast((item) => item.kind === "turn" && item.calls.some((one) => one === call || one.requests.includes(call)));
  return turn?.kind === "turn" ? cutWords(turn.reply?.text ?? "") : "";
}

interface QuestionPanelProps {
  question: PendingQuestion;
  words?: string;
}

/** A question of any session. */
export function QuestionPanel({ question, words = "" }: QuestionPanelProps) {
  return <AskCard ask={readPending(question)} words={words} />;
}

interface AskCardProps {
  ask: Ask;
  words: string;
  isSheet?: boolean;
}

export function AskCard({ ask, words, isSheet = false }: AskCardProps) {
  const card = useRef<HTMLElement>(null);
  useEffect(() => (card.current ? noteShown(card.current, ask) : undefined), [ask.id]);
  const isSelected = selectedAsk.value === ask.id;
  return (
    <section
      ref={card}
      class={`${isSheet ? "q-sheet" : "q"}${isSelected ? " selected" : ""}`}
      aria-label={ask.kind === "input" ? "The agent asks" : "Approval needed"}
      tabIndex={-1}
      onPointerDown={() => (selectedAsk.value = ask.id)}
    >
      {ask.kind === "input" ? (
        <InputPanel key={ask.id} ask={ask} isSheet={isSheet} />
      ) : (
        <ApprovalPanel key={ask.id} ask={ask} words={words} isSheet={isSheet} />
      )}
    </section>
  );
}

/** The place of a question in the conversation while the sheet shows it. */
function AskLine({ ask }: { ask: Ask }) {
  return (
    <p class="q-line attn">
      <Icon name="ask" class="sm" />
      {printTitle(ask)}
    </p>
  );
}

const ICONS = { allowed: "check", denied: "ban", answered: "check", gone: "clock" } as const;

/** A question that is answered or gone. */
export function DoneCard({ ask, outcome }: { ask: Ask; outcome: Outcome }) {
  const isGood = outcome.kind === "allowed" || outcome.kind === "answered";
  return (
    <section class="q done" aria-label={outcome.title}>
      <div class="q-h">
        <Icon name={ICONS[outcome.kind]} class={isGood ? "good" : "m3"} />
        <h2>{outcome.title}</h2>
        <span class="sp" />
        <span class="m3 t12">
          <VisibleText text={outcome.who} />
          {outcome.at > 0 && `, ${formatTime(outcome.at, { seconds: true })}`}
        </span>
      </div>
      <div class="q-b">
        <code>{printSubject(ask)}</code>
        {outcome.text && (
          <p class="m2">
            “<VisibleText text={outcome.text} />”
          </p>
        )}
      </div>
    </section>
  );
}
