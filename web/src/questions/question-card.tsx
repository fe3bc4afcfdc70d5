/** A question to a person, as a card in the conversation, in the inbox, or as a sheet on a phone. */

import { signal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { openedSession } from "../store/open-session.ts";
import { Icon } from "../ui/icon.tsx";
import { formatTime } from "../ui/format.ts";
import { VisibleText } from "../ui/visible-text.tsx";
import type { CallView } from "../view.ts";
import { ApprovalPanel } from "./approval-panel.tsx";
import { sendings } from "./answers.ts";
import { buildAskId, printSubject, printTitle, readAsk, type Ask } from "./ask.ts";
import { InputPanel } from "./input-panel.tsx";
import { nameOther, readOutcome, type Outcome } from "./outcome.ts";
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
  return fact && <OpenCard ask={readAsk(sessionId, fact)} call={call} />;
}

function OpenCard({ ask, call }: { ask: Ask; call: CallView }) {
  useEffect(() => () => void (readOutcome(call) && linger(ask.id)), [ask.id]);
  return isPhone.value ? <AskLine ask={ask} /> : <AskCard ask={ask} words={findTurnWords(call)} />;
}

/** What the model said in the reply that has the call. */
export function findTurnWords(call: CallView): string {
  const items = openedSession.peek()?.view.items ?? [];
  const turn = items.findLast((item) => item.kind === "turn" && item.calls.some((one) => one === call || one.requests.includes(call)));
  return turn?.kind === "turn" ? cutWords(turn.reply?.text ?? "") : "";
}

type CardKind = "card" | "sheet" | "page" | "small";

/** As a card, as a sheet above the lower edge of a phone, as a page of a phone, or as a card in the inbox of a phone. */
const CLASSES: Record<CardKind, string> = { card: "q", sheet: "q-sheet", page: "q-sheet q-page", small: "q q-small" };

interface AskCardProps {
  ask: Ask;
  words: string;
  as?: CardKind;
  /** What the question belongs to, where that is not plain. */
  where?: string;
}

/** An open question of any session. */
export function AskCard({ ask, words, as = "card", where = "" }: AskCardProps) {
  const card = useRef<HTMLElement>(null);
  useEffect(() => (card.current ? noteShown(card.current, ask) : undefined), [ask.id]);
  const isSelected = selectedAsk.value === ask.id;
  const panel = { ask, words, where, isSheet: as !== "card" };
  return (
    <section
      ref={card}
      class={`${CLASSES[as]}${isSelected ? " selected" : ""}`}
      aria-label={ask.kind === "input" ? "The agent asks" : "Approval needed"}
      tabIndex={-1}
      onPointerDown={() => (selectedAsk.value = ask.id)}
    >
      {ask.kind === "input" ? <InputPanel key={ask.id} {...panel} /> : <ApprovalPanel key={ask.id} {...panel} />}
    </section>
  );
}

/** Questions whose cards say for a moment that somebody else has answered. */
const lingering = signal<ReadonlySet<string>>(new Set());
const LINGERING_MS = 8000;

function linger(id: string): void {
  lingering.value = new Set(lingering.value).add(id);
  setTimeout(() => {
    const left = new Set(lingering.value);
    left.delete(id);
    lingering.value = left;
  }, LINGERING_MS);
}

/** Who answered a question that was open in front of the reader. It goes away by itself: the line of the call says it too. */
export function AnsweredCard({ sessionId, call }: QuestionCardProps) {
  const fact = call.asked ?? call.inputAsked;
  const id = buildAskId(sessionId, call.call.id);
  const sending = sendings.value.get(id)?.state;
  const outcome = fact && lingering.value.has(id) && sending !== "sent" && sending !== "sending" ? readOutcome(call) : null;
  return fact && outcome ? <DoneCard ask={readAsk(sessionId, fact)} outcome={outcome} isOther /> : null;
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

export const OUTCOME_ICONS = { allowed: "check", denied: "ban", answered: "check", gone: "clock" } as const;

interface DoneCardProps {
  ask: Ask;
  outcome: Outcome;
  /** Another device or person was first. */
  isOther?: boolean;
}

/** A question that is answered or gone. */
export function DoneCard({ ask, outcome, isOther = false }: DoneCardProps) {
  const isGood = outcome.kind === "allowed" || outcome.kind === "answered";
  return (
    <section class="q done" aria-label={outcome.title}>
      <div class="q-h">
        <Icon name={OUTCOME_ICONS[outcome.kind]} class={isGood ? "good" : "m3"} />
        <h2>{outcome.title}</h2>
        <span class="sp" />
        <span class="m3 t12">
          <VisibleText text={isOther ? nameOther(outcome.who) : outcome.who} />
          {outcome.at > 0 && `, ${formatTime(outcome.at, { seconds: true })}`}
        </span>
      </div>
      <div class="q-b">
        {isOther && outcome.kind !== "gone" && <span class="m2">It was answered elsewhere. </span>}
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
