/** The parts of a message: what the person wrote, and what is attached to it. */

import type { Attachment } from "../generated/api.ts";
import type { Part } from "../generated/events.ts";

/** Whether a part is what the person wrote, and not attached. */
export function isOwnText(part: Part): boolean {
  return part.type === "text" && !part.file;
}

/** What is attached to a message, so that it can be sent again. */
export function listAttachments(parts: readonly Part[]): Attachment[] {
  return parts.filter((part) => !isOwnText(part)).map(toAttachment);
}

function toAttachment(part: Part): Attachment {
  if (part.type === "text") return { type: "text", name: part.file ?? "", text: part.text };
  if (part.type === "file") return { type: "file", name: part.name, data: part.data, media_type: part.media_type };
  return part.url ? { type: "image", url: part.url } : { type: "image", data: part.data ?? "", media_type: part.media_type ?? "" };
}
