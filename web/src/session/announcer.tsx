/** Tells a screen reader whole sentences of the reply, and how a run ended. It says nothing of what was there before. */

import { effect } from "@preact/signals";
import { useEffect, useState } from "preact/hooks";
import type { View } from "../view.ts";
import type { ConversationSource } from "./context.ts";
import { describeEnding } from "./notice-text.ts";

const LONGEST = 400;
const SENTENCE_END = /[.!?:](?=\s)|\n\n/g;

export function Announcer({ source }: { source: ConversationSource }) {
  const [text, setText] = useState("");
  useEffect(() => {
    const reader = new Reader(source.view);
    return effect(() => {
      source.version.value;
      source.liveVersion.value;
      const news = reader.read(source.view, source.live?.text ?? "");
      if (news) setText(news);
    });
  }, [source.sessionId]);
  return (
    <div class="sr" role="status" aria-live="polite">
      {text}
    </div>
  );
}

/** Finds what is new since it was asked last. */
class Reader {
  private saidLength = 0;
  private lastReply: number;
  private lastRun: number;

  constructor(view: View) {
    this.lastReply = findLastReply(view)?.seq ?? 0;
    this.lastRun = view.last?.seq ?? 0;
  }

  read(view: View, live: string): string {
    const reply = findLastReply(view);
    if (reply && reply.seq > this.lastReply) {
      const rest = (reply.text ?? "").slice(this.saidLength);
      this.lastReply = reply.seq;
      this.saidLength = 0;
      return cut(rest);
    }
    if (view.last && view.last.seq > this.lastRun) {
      this.lastRun = view.last.seq;
      this.saidLength = 0;
      const ending = describeEnding(view.last);
      return `${ending.title}. ${ending.text}`.trim();
    }
    return this.readLive(live);
  }

  /** The sentences that are complete by now. */
  private readLive(live: string): string {
    if (live.length < this.saidLength) this.saidLength = 0;
    const fresh = live.slice(this.saidLength);
    const end = [...fresh.matchAll(SENTENCE_END)].at(-1);
    if (!end) return "";
    const length = end.index + end[0].length;
    this.saidLength += length;
    return cut(fresh.slice(0, length));
  }
}

function findLastReply(view: View) {
  const turn = view.items.at(-1);
  return turn?.kind === "turn" && turn.reply?.text ? turn.reply : null;
}

function cut(text: string): string {
  const plain = text.replace(/[*_`#|>]/g, "").trim();
  return plain.length > LONGEST ? `${plain.slice(0, LONGEST)}…` : plain;
}
