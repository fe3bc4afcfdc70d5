/** What the model wrote: its thoughts, folded, and its reply as plain prose. */

import { Markdown } from "../markdown/markdown.tsx";
import { formatDuration, formatTime } from "../ui/format.ts";
import type { PartialItem, TurnItem } from "../view.ts";
import { useConversation } from "./context.ts";
import { FoldLine } from "./fold-line.tsx";
import { MessageMenu } from "./message-menu.tsx";

export function ReplyRow({ item, isLast }: { item: TurnItem; isLast: boolean }) {
  const { reply } = item;
  if (!reply) return null;
  const end = item.calls.reduce((last, call) => Math.max(last, call.finished?.seq ?? 0), reply.seq);
  return (
    <article class="md" aria-label="Reply">
      <Markdown text={reply.text ?? ""} />
      {reply.finish === "length" && <p class="note">The reply was cut off: it reached the model’s limit.</p>}
      <div class="reply-foot">
        <MessageMenu kind="reply" text={reply.text ?? ""} seq={end} isLast={isLast} />
        <time class="m3 t12">{formatTime(reply.at)}</time>
      </div>
    </article>
  );
}

export function ThoughtRow({ item, isNested }: { item: TurnItem; isNested: boolean }) {
  const { folding } = useConversation();
  folding.version.value;
  const key = `t${item.seq}`;
  const isOpen = folding.isOpen(key, false);
  const text = item.reply?.reasoning ?? "";
  // The time of the whole reply is the time of the thought only if it wrote nothing else.
  const seconds = item.reply?.text?.trim() ? 0 : item.reply ? item.reply.at - item.startedAt : 0;
  return (
    <div class={isNested ? "tc nested" : "tc"}>
      <FoldLine
        icon="think"
        iconClass="m3"
        name="Thought"
        isOpen={isOpen}
        onToggle={() => folding.set(key, !isOpen)}
        time={seconds >= 1 ? formatDuration(seconds) : undefined}
      >
        <span class="m3 cut">{text.trim().slice(0, 200).split("\n", 1)[0]}</span>
      </FoldLine>
      {isOpen && (
        <div class="tc-b thought md">
          <Markdown text={text} />
        </div>
      )}
    </div>
  );
}

export function PartialRow({ item }: { item: PartialItem }) {
  return (
    <article class="md" aria-label="Reply that was broken off">
      <Markdown text={item.fact.partial ?? ""} />
      <p class="note">The reply was broken off here.</p>
    </article>
  );
}
