/** Estimates of tokens, as the server makes them where no provider has counted. */

import type { CallFinished, Part, SignalDetected } from "./generated/events.ts";
import type { CallView, Item, TurnItem } from "./view.ts";

const BYTES_PER_TOKEN = 4;
const IMAGE_TOKENS = 1000;
const MESSAGE_TOKENS = 4;

const encoder = new TextEncoder();

export function estimateText(text: string): number {
  // Most text is ASCII, and a scan of it costs less than encoding it.
  const bytes = /^[\x00-\x7f]*$/.test(text) ? text.length : encoder.encode(text).length;
  return Math.ceil(bytes / BYTES_PER_TOKEN);
}

export function estimateParts(parts: readonly Part[]): number {
  return sum(parts, (part) => {
    if (part.type === "text") return estimateText(part.text);
    return part.type === "image" ? IMAGE_TOKENS : Math.floor(Math.floor(((part.data ?? "").length * 3) / 4) / BYTES_PER_TOKEN);
  });
}

/** The tokens of an item in a request. What only people read has none. */
export function estimateItem(item: Item): number {
  switch (item.kind) {
    case "message":
      return MESSAGE_TOKENS + estimateParts(item.message.parts);
    case "history":
      return estimateHistory(item.message.history ?? []);
    case "turn":
      return estimateTurn(item) + (item.wrapUp ? MESSAGE_TOKENS : 0);
    case "partial":
      return 2 * MESSAGE_TOKENS + estimateText(item.fact.partial ?? "");
    case "notice":
      if (item.fact.type === "signal_detected" && item.fact.kind === "hook") return estimateHook(item.fact);
      return item.fact.type === "signal_detected" || item.fact.type === "run_started" ? MESSAGE_TOKENS : 0;
  }
}

export function estimateHook(fact: SignalDetected): number {
  return MESSAGE_TOKENS + estimateText(fact.detail ?? "");
}

export function estimateTurn({ reply, calls }: TurnItem): number {
  const written = reply === null ? 0 : estimateText(reply.text ?? "");
  return MESSAGE_TOKENS + written + sum(calls, estimateCall);
}

function estimateCall({ call, finished }: CallView): number {
  const called = MESSAGE_TOKENS + estimateText(call.tool + (call.arguments ?? "{}"));
  return called + (finished === null ? 0 : estimateResult(finished));
}

/** Outputs are long, and a fact is folded again for each position that is looked at. */
const resultTokens = new WeakMap<CallFinished, number>();

export function estimateResult(fact: CallFinished): number {
  let tokens = resultTokens.get(fact);
  if (tokens === undefined) {
    tokens = MESSAGE_TOKENS + estimateText(fact.output ?? "") + estimateParts(fact.parts ?? []);
    resultTokens.set(fact, tokens);
  }
  return tokens;
}

type Earlier = NonNullable<Extract<Item, { kind: "history" }>["message"]["history"]>;

function estimateHistory(messages: Earlier): number {
  return sum(messages, (message) => {
    if (message.role === "user") return MESSAGE_TOKENS + estimateParts(message.parts);
    if (message.role === "result") return MESSAGE_TOKENS + estimateText(message.text) + estimateParts(message.parts ?? []);
    const calls = sum(message.calls ?? [], (call) => MESSAGE_TOKENS + estimateText(call.tool + (call.arguments ?? "{}")));
    return MESSAGE_TOKENS + estimateText(message.text ?? "") + calls;
  });
}

function sum<T>(values: readonly T[], measure: (value: T) => number): number {
  let total = 0;
  for (const value of values) total += measure(value);
  return total;
}
