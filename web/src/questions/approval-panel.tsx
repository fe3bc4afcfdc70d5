/** The approval of a call, with every way to answer it. */

import { useEffect, useRef, useState } from "preact/hooks";
import { useKeys, type KeyCommand } from "../keys.ts";
import type { PreviewView } from "../generated/api.ts";
import { api, sessionPath } from "../api.ts";
import { canApprove, canSend } from "../store/me.ts";
import { sessions } from "../store/sessions.ts";
import { everySecond } from "../ui/clock.ts";
import { formatAge, formatClock, formatTime } from "../ui/format.ts";
import { Icon } from "../ui/icon.tsx";
import { VisibleText } from "../ui/visible-text.tsx";
import { attempt } from "../ui/toasts.tsx";
import { sendApproval, sendings, type ApprovalChoice } from "./answers.ts";
import { ApprovalBody } from "./approval-body.tsx";
import { getCommand, titleAsk, type Ask } from "./ask.ts";
import { usePreview } from "./preview.ts";
import { useInert, useSeen } from "./ready.ts";
import { moveOn, moves, selectedAsk } from "./selection.ts";

interface ApprovalPanelProps {
  ask: Ask;
  words: string;
  where: string;
  /** On a phone the buttons are in reach of the thumb. */
  isSheet: boolean;
}

export function ApprovalPanel({ ask, words, where, isSheet }: ApprovalPanelProps) {
  const preview = usePreview(ask);
  const end = useRef<HTMLSpanElement>(null);
  const content = `${ask.id} ${ask.digest} ${preview ? "whole" : "first"}`;
  const isInert = useInert(`${content} ${moves.value}`);
  const isSeen = useSeen(end, content);
  const [isDenying, setDenying] = useState(false);
  const sending = sendings.value.get(ask.id);
  const isBusy = sending?.state === "sending" || sending?.state === "sent";
  const state: PanelState = { ask, preview, isInert, isSeen, isBusy, isSheet };
  return (
    <>
      <AskHead ask={ask} where={where} isInert={isInert} />
      <div class="q-b">
        <ApprovalBody ask={ask} preview={preview} words={words} />
        <span ref={end} class="q-end" />
      </div>
      {sending?.state === "failed" && (
        <p class="q-error bad" role="alert">
          {sending.error}
        </p>
      )}
      {!canApprove.value ? (
        <div class="rule q-only">You may look, not answer. Ask for a token that may approve.</div>
      ) : isDenying ? (
        <DenyForm ask={ask} isBusy={isBusy} onClose={() => setDenying(false)} />
      ) : (
        <Answers state={state} onDeny={() => setDenying(true)} />
      )}
    </>
  );
}

interface PanelState {
  ask: Ask;
  preview: PreviewView | null;
  isInert: boolean;
  isSeen: boolean;
  isBusy: boolean;
  isSheet: boolean;
}

/** The title, when it was asked, and the class of the call. */
export function AskHead({ ask, where, isInert }: { ask: Ask; where: string; isInert: boolean }) {
  const { before, subject, after } = titleAsk(ask);
  const age = everySecond.value - ask.askedAt;
  const asked = age < 600 ? formatClock(age) : formatAge(ask.askedAt, everySecond.value);
  const isHarmful = ask.safety === "destructive";
  return (
    <>
      {isInert && <span class="q-fill" />}
      <div class="q-h">
        <Icon name="ask" />
        <h2>
          {before}
          <VisibleText text={subject} />
          {after}
        </h2>
        <span class="sp" />
        {isHarmful && (
          <span class="tag bad">
            <Icon name="fail" class="sm" />
            Destructive
          </span>
        )}
        <span class="m2 t12 q-age">
          <span class="wide-only">Asked </span>
          {asked}
          <span class="wide-only"> ago</span>
          {ask.safety && !isHarmful && ` · ${ask.safety}`}
          {ask.expiresAt !== null && ` · until ${formatTime(ask.expiresAt)}`}
        </span>
      </div>
      {where && (
        <div class="q-sub cut">
          <VisibleText text={where} />
        </div>
      )}
    </>
  );
}

async function answer(ask: Ask, choice: ApprovalChoice): Promise<void> {
  if (await sendApproval(ask, choice)) moveOn(ask);
}

/** The words for allowing more than this call. */
function nameTool(ask: Ask): string {
  if (ask.tool === "network" && ask.during) return "Every host";
  return ask.during ? "Every folder" : `All of ${ask.tool}`;
}

function Answers({ state, onDeny }: { state: PanelState; onDeny: () => void }) {
  const { ask, isInert, isSeen, isBusy, isSheet } = state;
  const [keeps, setKeeps] = useState(false);
  const [isMore, setMore] = useState(false);
  const isSelected = selectedAsk.value === ask.id;
  const areKeysInert = useInert(isSelected ? `${ask.id} selected` : "");
  const mayAllow = !isInert && !isBusy && isSeen;
  const mayDeny = !isInert && !isBusy;
  const hasRule = ask.rule !== "" && !ask.isOnce;
  const allow = (scope: ApprovalChoice["scope"]) => {
    if (mayAllow) void answer(ask, { decision: "allow", scope, ...(scope === "pattern" && keeps ? { keep: true } : {}) });
  };
  const key = (keys: string, label: string, run: () => void, isThere = true): KeyCommand => ({
    keys,
    label,
    where: "Question, selected",
    run: (event) => void (event.repeat || areKeysInert || run()),
    isActive: () => isSelected && isThere,
  });
  useKeys([
    key("y", "Allow once", () => allow("call")),
    key("p", "Allow this pattern", () => allow("pattern"), hasRule),
    key("t", "Allow the tool", () => allow("tool"), !ask.isOnce),
    key("s", "Allow for the session", () => allow("session"), !ask.isOnce),
    key("n", "Deny…", () => mayDeny && onDeny()),
    key("Escape", "Leave the question", () => (selectedAsk.value = "")),
  ]);
  const keyOf = (name: string) => (isSelected && !areKeysInert ? { "aria-keyshortcuts": name } : {});
  const once = (
    <button type="button" class="b pri" disabled={!mayAllow} {...keyOf("y")} onClick={() => allow("call")}>
      {isBusy ? "Sending…" : "Allow once"} <kbd>Y</kbd>
    </button>
  );
  const deny = (
    <button type="button" class="b" disabled={!mayDeny} {...keyOf("n")} onClick={onDeny}>
      Deny… <kbd>N</kbd>
    </button>
  );
  const lasting = !ask.isOnce && <LastingAnswers ask={ask} hasRule={hasRule} isOff={!mayAllow} keyOf={keyOf} onAllow={allow} />;
  return (
    <>
      {!isSeen && !isInert && <div class="rule q-only">Read it to its end before you allow it.</div>}
      {isSheet ? (
        <div class="thumb">
          {deny}
          {once}
          {lasting && (
            <button type="button" class="b bare wide" aria-expanded={isMore} onClick={() => setMore(!isMore)}>
              Allow more: {hasRule ? "pattern, " : ""}tool, session <Icon name={isMore ? "down" : "chev"} class="sm" />
            </button>
          )}
        </div>
      ) : (
        <div class="q-f">
          {once}
          {lasting}
          <span class="sp" />
          {deny}
        </div>
      )}
      {isSheet && isMore && <div class="q-more">{lasting}</div>}
      {(!isSheet || isMore || ask.isOnce) && <Rule ask={ask} hasRule={hasRule} keeps={keeps} onKeep={setKeeps} />}
    </>
  );
}

interface LastingProps {
  ask: Ask;
  hasRule: boolean;
  isOff: boolean;
  /** Names the key of a button while it works. */
  keyOf: (name: string) => object;
  onAllow: (scope: ApprovalChoice["scope"]) => void;
}

function LastingAnswers({ ask, hasRule, isOff, keyOf, onAllow }: LastingProps) {
  return (
    <>
      {hasRule && (
        <button type="button" class="b bare" disabled={isOff} {...keyOf("p")} onClick={() => onAllow("pattern")}>
          This pattern <kbd>P</kbd>
        </button>
      )}
      <button type="button" class="b bare" disabled={isOff} {...keyOf("t")} onClick={() => onAllow("tool")}>
        <span class="cut">
          <VisibleText text={nameTool(ask)} />
        </span>
        <kbd>T</kbd>
      </button>
      <button type="button" class="b bare" disabled={isOff} {...keyOf("s")} onClick={() => onAllow("session")}>
        Whole session <kbd>S</kbd>
      </button>
    </>
  );
}

interface RuleProps {
  ask: Ask;
  hasRule: boolean;
  keeps: boolean;
  onKeep: (keeps: boolean) => void;
}

/** A longer rule scrolls, so that the buttons stay where they are. The keys can scroll it too. */
const LONG_RULE = 300;

/** The rule that "this pattern" makes, before it is made. */
function Rule({ ask, hasRule, keeps, onKeep }: RuleProps) {
  if (ask.isOnce) return <div class="rule">No lasting answer is possible here.</div>;
  if (!hasRule) return null;
  const workspace = sessions.value.get(ask.sessionId)?.workspace.split("/").at(-1) ?? "";
  return (
    <div class="rule">
      <span class="rule-text" tabIndex={ask.rule.length > LONG_RULE ? 0 : undefined}>
        “This pattern” allows{" "}
        <code>
          <VisibleText text={ask.rule} />
        </code>{" "}
        {keeps ? "in every session here." : "in this session."}
      </span>
      <label class="keep">
        <input type="checkbox" checked={keeps} onChange={(event) => onKeep(event.currentTarget.checked)} />
        Keep it for good{workspace && ` in ${workspace}`}
      </label>
    </div>
  );
}

function DenyForm({ ask, isBusy, onClose }: { ask: Ask; isBusy: boolean; onClose: () => void }) {
  const [reason, setReason] = useState("");
  const field = useRef<HTMLInputElement>(null);
  useEffect(() => field.current?.focus({ preventScroll: true }), []);
  const isCommand = getCommand(ask) !== "";
  const deny = async (stops: boolean) => {
    const comment = reason.trim();
    if (!(await sendApproval(ask, { decision: "deny", ...(comment ? { comment } : {}) }))) return;
    if (stops) await attempt(() => api.post(sessionPath(ask.sessionId, "/cancel")));
    moveOn(ask);
  };
  return (
    <form
      class="q-deny"
      onSubmit={(event) => (event.preventDefault(), void deny(false))}
      onKeyDown={(event) => event.key === "Escape" && (event.preventDefault(), onClose())}
    >
      <label class="field on">
        <span class="sr">Why, for the agent</span>
        <input
          ref={field}
          value={reason}
          maxLength={10_000}
          placeholder={isCommand ? "What it should do instead" : "Why not, or what to do instead"}
          onInput={(event) => setReason(event.currentTarget.value)}
        />
      </label>
      <div class="acts">
        <button type="submit" class="b pri" disabled={isBusy}>
          Deny{reason.trim() ? ", and tell the agent" : ""}
        </button>
        {canSend.value && (
          <button type="button" class="b" disabled={isBusy} onClick={() => void deny(true)}>
            Deny and stop the run
          </button>
        )}
        <button type="button" class="b bare" onClick={onClose}>
          Back
        </button>
      </div>
    </form>
  );
}
