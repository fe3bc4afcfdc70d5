/** A person's message, with what is attached to it. */

import { useState } from "preact/hooks";
import type { FilePart, ImagePart, MessageReceived, Part } from "../generated/events.ts";
import { isEmbeddedImage } from "../markdown/links.ts";
import { readText } from "../fold-state.ts";
import { formatTime } from "../ui/format.ts";
import { Icon } from "../ui/icon.tsx";
import type { HistoryItem, MessageItem } from "../view.ts";
import { useConversation } from "./context.ts";
import { FoldLine } from "./fold-line.tsx";
import { MessageMenu } from "./message-menu.tsx";

const LONGEST = 4000;

export function MessageRow({ item }: { item: MessageItem }) {
  const { parts } = item.message;
  const own = parts.filter((part) => part.type !== "text" || !part.file);
  const files = parts.flatMap((part) => (part.type === "text" && part.file ? [part.file] : part.type === "file" ? [part.name] : []));
  return (
    <article class="you" aria-label="Your message">
      <div class="who">
        You
        <span class="sp" />
        <MessageMenu kind="message" text={readText(own)} seq={item.seq} parts={parts} />
        <time>{formatTime(item.at)}</time>
      </div>
      <LongMessage text={readText(own)} />
      <Attached images={parts.filter(isImage)} files={files} />
    </article>
  );
}

function isImage(part: Part): part is ImagePart {
  return part.type === "image";
}

function LongMessage({ text }: { text: string }) {
  const [isWhole, setWhole] = useState(false);
  const isCut = text.length > LONGEST && !isWhole;
  return (
    <>
      <div class="you-text">{isCut ? `${text.slice(0, LONGEST)}…` : text}</div>
      {isCut && (
        <button type="button" class="acc" onClick={() => setWhole(true)}>
          Show all of it
        </button>
      )}
    </>
  );
}

function Attached({ images, files }: { images: readonly ImagePart[]; files: readonly string[] }) {
  if (images.length === 0 && files.length === 0) return null;
  return (
    <div class="attached">
      {images.map((image, at) => {
        const address = `data:${image.media_type ?? ""};base64,${image.data ?? ""}`;
        if (isEmbeddedImage(address)) return <img key={at} src={address} alt={`Attached image ${at + 1}`} />;
        return <AttachedName key={at} name={image.url || "image"} />;
      })}
      {files.map((name, at) => (
        <AttachedName key={`f${at}`} name={name} />
      ))}
    </div>
  );
}

function AttachedName({ name }: { name: string }) {
  return (
    <span class="attached-name">
      <Icon name="clip" class="sm" />
      <span class="cut">{name}</span>
    </span>
  );
}

/** What a client's conversation had before its first message here. */
export function HistoryRow({ item }: { item: HistoryItem }) {
  const { folding } = useConversation();
  folding.version.value;
  const history = item.message.history ?? [];
  const key = `h${item.seq}`;
  const isOpen = folding.isOpen(key, false);
  return (
    <div class="tc">
      <FoldLine icon="clock" iconClass="m3" name="Earlier conversation" isOpen={isOpen} onToggle={() => folding.set(key, !isOpen)}>
        <span class="m3 cut">{history.length} messages that the client sent along</span>
      </FoldLine>
      {isOpen && (
        <div class="tc-b">
          {history.map((message, at) => (
            <EarlierMessage key={at} message={message} />
          ))}
        </div>
      )}
    </div>
  );
}

type Earlier = NonNullable<MessageReceived["history"]>[number];

function EarlierMessage({ message }: { message: Earlier }) {
  const names = { user: "You", model: "Agent", result: "Result" };
  const text = message.role === "user" ? readText(message.parts) : (message.text ?? "");
  const files = message.role === "user" ? message.parts.filter((part): part is FilePart => part.type === "file") : [];
  return (
    <div class="earlier">
      <div class="who">{message.role === "result" ? `Result of ${message.tool}` : names[message.role]}</div>
      <div class="you-text">{text.slice(0, LONGEST)}</div>
      <Attached images={[]} files={files.map((file) => file.name)} />
    </div>
  );
}
