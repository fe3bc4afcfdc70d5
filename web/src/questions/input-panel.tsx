/** What the model asks the person in words: radio lists, with "Something else…" last, or a text. */

import { useRef, useState } from "preact/hooks";
import type { Question } from "../generated/events.ts";
import { useKeys, type KeyCommand } from "../keys.ts";
import { canApprove } from "../store/me.ts";
import { VisibleText } from "../ui/visible-text.tsx";
import { sendAnswers, sendApproval, sendings } from "./answers.ts";
import { AskHead } from "./approval-panel.tsx";
import type { Ask } from "./ask.ts";
import { useInert } from "./ready.ts";
import { moveOn, moves, selectedAsk } from "./selection.ts";

interface Choice {
  /** The place of the option. -1 means nothing yet, and the number of options means something else. */
  place: number;
  text: string;
}

function readChoice(question: Question, choice: Choice): string {
  const options = question.options ?? [];
  return choice.place >= 0 && choice.place < options.length ? (options[choice.place] ?? "") : choice.text.trim();
}

interface InputPanelProps {
  ask: Ask;
  where: string;
  isSheet: boolean;
}

export function InputPanel({ ask, where, isSheet }: InputPanelProps) {
  const isInert = useInert(`${ask.id} ${moves.value}`);
  const [choices, setChoices] = useState<Choice[]>(() => ask.questions.map(() => ({ place: -1, text: "" })));
  const sending = sendings.value.get(ask.id);
  const isBusy = sending?.state === "sending" || sending?.state === "sent";
  const answers = ask.questions.map((question, place) => readChoice(question, choices[place] ?? { place: -1, text: "" }));
  const isWhole = answers.length > 0 && answers.every((one) => one !== "");
  const isSelected = selectedAsk.value === ask.id;
  const choose = (number: number, choice: Partial<Choice>) =>
    setChoices((all) => all.map((one, place) => (place === number ? { ...one, ...choice } : one)));
  const submit = async () => {
    if (isWhole && !isInert && !isBusy && (await sendAnswers(ask, answers))) moveOn(ask);
  };
  const decline = async () => {
    if (!isInert && !isBusy && (await sendApproval(ask, { decision: "deny" }))) moveOn(ask);
  };
  const form = useRef<HTMLFormElement>(null);
  const write = (): void => form.current?.querySelector("textarea")?.focus();
  const current = Math.max(0, answers.findIndex((one) => one === ""));
  useChoiceKeys({ isSelected: isSelected && canApprove.value, isInert, question: ask.questions[current], isWhole, submit, write, choose: (place) => choose(current, { place }) });
  const name = answers.length === 1 && isWhole ? ` “${shorten(answers[0] ?? "")}”` : "";
  return (
    <>
      <AskHead ask={ask} where={where} isInert={isInert} />
      <form ref={form} onSubmit={(event) => (event.preventDefault(), void submit())}>
        <fieldset class="q-b q-inputs" disabled={!canApprove.value || isBusy}>
          {ask.questions.map((question, place) => (
            <QuestionField
              key={place}
              id={`${ask.id}-${place}`}
              question={question}
              isTitled={ask.questions.length > 1}
              choice={choices[place] ?? { place: -1, text: "" }}
              onChange={(choice) => choose(place, choice)}
            />
          ))}
        </fieldset>
        {sending?.state === "failed" && (
          <p class="q-error bad" role="alert">
            {sending.error}
          </p>
        )}
        {canApprove.value ? (
          <div class={isSheet ? "thumb" : "q-f"}>
            <button type="submit" class={isSheet ? "b pri wide" : "b pri"} disabled={!isWhole || isInert || isBusy}>
              {isBusy ? "Sending…" : `Answer${name}`}
            </button>
            {!isSheet && <span class="sp" />}
            <button type="button" class={isSheet ? "b bare wide" : "b bare"} disabled={isInert || isBusy} onClick={() => void decline()}>
              I do not want to answer
            </button>
          </div>
        ) : (
          <div class="rule q-only">You may look, not answer. Ask for a token that may approve.</div>
        )}
      </form>
    </>
  );
}

interface ChoiceKeys {
  isSelected: boolean;
  isInert: boolean;
  question: Question | undefined;
  isWhole: boolean;
  choose: (place: number) => void;
  submit: () => Promise<void>;
  /** Put the focus on the text to write. */
  write: () => void;
}

function useChoiceKeys({ isSelected, isInert, question, isWhole, choose, submit, write }: ChoiceKeys): void {
  const count = question ? (question.options?.length ?? 0) + (question.strict ? 0 : 1) : 0;
  const where = "Question, selected";
  const numbers = Array.from({ length: Math.min(count, 9) }, (_, place): KeyCommand => ({
    keys: String(place + 1),
    label: `Choose ${place + 1}`,
    where,
    run: () => choose(place),
    isActive: () => isSelected && !isInert,
  }));
  useKeys([
    ...numbers,
    { keys: "Enter", label: "Answer", where, run: (event) => void (event.repeat || (isWhole ? submit() : write())), isActive: () => isSelected },
    { keys: "Escape", label: "Leave the question", where, run: () => (selectedAsk.value = ""), isActive: () => isSelected },
  ]);
}

function shorten(text: string): string {
  return text.length > 32 ? `${text.slice(0, 31)}…` : text;
}

interface QuestionFieldProps {
  id: string;
  question: Question;
  /** The text of the question stands here, because the card's title is that of several. */
  isTitled: boolean;
  choice: Choice;
  onChange: (choice: Partial<Choice>) => void;
}

function QuestionField({ id, question, isTitled, choice, onChange }: QuestionFieldProps) {
  const options = question.options ?? [];
  const isOther = choice.place === options.length;
  return (
    <div class="q-input">
      {isTitled && (
        <p id={id} class="w5">
          <VisibleText text={question.text} />
        </p>
      )}
      {options.length > 0 && (
        <div class="opts" role="radiogroup" {...(isTitled ? { "aria-labelledby": id } : { "aria-label": question.text })}>
          {options.map((option, place) => (
            <Option key={place} id={id} place={place} isOn={choice.place === place} onChoose={() => onChange({ place })}>
              <VisibleText text={option} />
            </Option>
          ))}
          {!question.strict && (
            <Option id={id} place={options.length} isOn={isOther} onChoose={() => onChange({ place: options.length })}>
              <span class="m2">Something else…</span>
            </Option>
          )}
        </div>
      )}
      {(options.length === 0 || isOther) && <OtherText isOther={isOther} text={choice.text} label={question.text} onInput={(text) => onChange({ text })} />}
    </div>
  );
}

function OtherText({ isOther, text, label, onInput }: { isOther: boolean; text: string; label: string; onInput: (text: string) => void }) {
  const wasFocused = useRef(false);
  return (
    <textarea
      ref={(box) => {
        if (box && isOther && !wasFocused.current) box.focus();
        wasFocused.current = box !== null;
      }}
      class="q-text"
      rows={2}
      aria-label={label}
      placeholder="Your answer"
      value={text}
      onInput={(event) => onInput(event.currentTarget.value)}
      onKeyDown={(event) => {
        if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
        event.preventDefault();
        event.currentTarget.form?.requestSubmit();
      }}
    />
  );
}

interface OptionProps {
  id: string;
  place: number;
  isOn: boolean;
  onChoose: () => void;
  children: preact.ComponentChildren;
}

function Option({ id, place, isOn, onChoose, children }: OptionProps) {
  return (
    <label class="opt">
      <input type="radio" class={isOn ? "radio on" : "radio"} name={`choice-${id}`} checked={isOn} onChange={onChoose} />
      <span>{children}</span>
      {place < 9 && <kbd>{place + 1}</kbd>}
    </label>
  );
}
