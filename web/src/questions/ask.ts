/** A question to a person as the page shows it, from a fact or from the server's list of open questions. */

import type { PendingQuestion } from "../generated/api.ts";
import type { ApprovalRequested, InputRequested, Question } from "../generated/events.ts";
import { nameCharacter, splitHidden } from "../ui/hidden-text.ts";

export interface Ask {
  /** Names the question among those of all sessions. */
  id: string;
  sessionId: string;
  callId: string;
  kind: "approval" | "input";
  tool: string;
  arguments: Record<string, unknown>;
  safety: string;
  why: string;
  rule: string;
  /** It can only be allowed once. */
  isOnce: boolean;
  digest: string;
  /** A running call that asks for more. */
  during: string;
  questions: Question[];
  askedAt: number;
  /** When it is too late to answer. Null for never. */
  expiresAt: number | null;
}

export function buildAskId(sessionId: string, callId: string): string {
  return `${sessionId}/${callId}`;
}

export function readAsk(sessionId: string, fact: ApprovalRequested | InputRequested): Ask {
  const base = { id: buildAskId(sessionId, fact.call_id), sessionId, callId: fact.call_id, askedAt: fact.at, expiresAt: fact.expires_at ?? null };
  if (fact.type === "input_requested") {
    const empty = { tool: "ask_user", arguments: {}, safety: "", why: "", rule: "", isOnce: false, digest: "", during: "" };
    return { ...base, ...empty, kind: "input", questions: fact.questions };
  }
  return {
    ...base,
    kind: "approval",
    tool: fact.tool,
    arguments: fact.arguments ?? {},
    safety: fact.safety,
    why: fact.why,
    rule: fact.rule ?? "",
    isOnce: fact.once ?? false,
    digest: fact.digest ?? "",
    during: fact.during ?? "",
    questions: [],
  };
}

export function readPending(question: PendingQuestion): Ask {
  return {
    id: buildAskId(question.session_id, question.call_id),
    sessionId: question.session_id,
    callId: question.call_id,
    kind: question.kind === "input" ? "input" : "approval",
    tool: question.tool,
    arguments: question.arguments,
    safety: question.safety,
    why: question.why,
    rule: question.rule,
    isOnce: question.once,
    digest: question.digest,
    during: question.during,
    questions: question.questions.map((text, place) => ({
      text,
      options: question.options[place] ?? [],
      strict: question.strict[place] ?? false,
    })),
    askedAt: question.asked_at,
    expiresAt: question.expires_at,
  };
}

/** A question in one line. `subject` is text of the model, between the other two. */
export interface AskTitle {
  before: string;
  subject: string;
  after: string;
}

function getText(ask: Ask, name: string): string {
  const value = ask.arguments[name];
  return typeof value === "string" ? value : "";
}

/** Arguments that are a command to run. */
export function getCommand(ask: Ask): string {
  return getText(ask, "command");
}

export function titleAsk(ask: Ask): AskTitle {
  if (ask.kind === "input") {
    const [first, ...more] = ask.questions;
    if (more.length > 0) return { before: `${more.length + 1} questions`, subject: "", after: "" };
    return { before: "", subject: first?.text ?? "The agent asks", after: "" };
  }
  if (ask.during) return titleRequest(ask);
  if (getCommand(ask)) return { before: "Run this command?", subject: "", after: "" };
  const path = getText(ask, "path");
  if (path && /write|edit|patch|create/.test(ask.tool)) return { before: "Change ", subject: path, after: "?" };
  if (path && /read|list/.test(ask.tool)) return { before: "Read ", subject: path, after: "?" };
  if (ask.tool === "apply_patch") return { before: "Change these files?", subject: "", after: "" };
  const address = getText(ask, "url");
  if (address) return { before: "Open this address?", subject: "", after: "" };
  return { before: "Run ", subject: ask.tool, after: "?" };
}

function titleRequest(ask: Ask): AskTitle {
  const subject = String(Object.values(ask.arguments)[0] ?? "");
  if (ask.tool === "network") return { before: "Connect to ", subject, after: "?" };
  if (ask.tool === "read_folder") return { before: "Read the folder ", subject, after: "?" };
  if (ask.tool === "write_folder") return { before: "Change files in ", subject, after: "?" };
  return { before: "Run ", subject: ask.tool, after: "?" };
}

/** The title as plain text, with hidden characters spelled out. */
export function printTitle(ask: Ask): string {
  const { before, subject, after } = titleAsk(ask);
  return before + spellOut(subject) + after;
}

/** The command or the main argument on one line. */
export function printSubject(ask: Ask): string {
  if (ask.kind === "input") return printTitle(ask);
  const main = ["command", "path", "url"].map((name) => getText(ask, name)).find((value) => value);
  return spellOut(main ?? `${ask.tool} ${JSON.stringify(ask.arguments)}`).replace(/\s+/g, " ").slice(0, 300);
}

export function spellOut(text: string): string {
  return splitHidden(text).map((piece) => (piece.isHidden ? `<${nameCharacter(piece.text)}>` : piece.text)).join("");
}
