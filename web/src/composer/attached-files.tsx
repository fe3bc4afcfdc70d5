/** The files of a message that is being written, and the ways to add some: a button, pasting and dropping. */

import { useEffect, useRef, useState } from "preact/hooks";
import type { Attachment } from "../generated/api.ts";
import { isEmbeddedImage } from "../markdown/links.ts";
import { Icon } from "../ui/icon.tsx";
import { showToast } from "../ui/toasts.tsx";
import { VisibleText } from "../ui/visible-text.tsx";
import { countBytes, formatBytes, readFiles } from "./attachments.ts";
import { changeDraft, draftOf } from "./drafts.ts";

interface AttachedFilesProps {
  /** The session that the draft belongs to. */
  draft: string;
}

export function AttachedFiles({ draft }: AttachedFilesProps) {
  const { attachments } = draftOf(draft).value;
  if (attachments.length === 0) return null;
  const remove = (one: Attachment): void => changeDraft(draft, { attachments: attachments.filter((other) => other !== one) });
  return (
    <ul class="clips" aria-label="Attached files">
      {attachments.map((one, at) => (
        <li key={at} class="clip">
          <Preview attachment={one} />
          <span class="cut" title={one.name}>
            <VisibleText text={one.name || "image"} />
          </span>
          <span class="m3">{formatBytes(countBytes(one))}</span>
          <button type="button" class="b bare ico" aria-label={`Remove ${one.name}`} title="Remove" onClick={() => remove(one)}>
            <Icon name="x" class="sm" />
          </button>
        </li>
      ))}
    </ul>
  );
}

function Preview({ attachment }: { attachment: Attachment }) {
  const address = `data:${attachment.media_type};base64,${attachment.data}`;
  if (attachment.type === "image" && isEmbeddedImage(address)) return <img src={address} alt="" />;
  return <Icon name="file" class="sm m3" />;
}

interface AttachButtonProps {
  onFiles: (files: File[]) => void;
}

export function AttachButton({ onFiles }: AttachButtonProps) {
  const input = useRef<HTMLInputElement>(null);
  return (
    <>
      <button type="button" class="b bare ico" aria-label="Attach a file" title="Attach a file" onClick={() => input.current?.click()}>
        <Icon name="clip" />
      </button>
      <input
        ref={input}
        type="file"
        multiple
        hidden
        aria-label="Files to attach"
        onChange={(event) => {
          onFiles([...(event.currentTarget.files ?? [])]);
          event.currentTarget.value = "";
        }}
      />
    </>
  );
}

/** Adds files to a draft. What is too large is told. Files are read one after the other, so that the limit holds. */
export function useAttaching(draft: string): (files: File[]) => void {
  const last = useRef(Promise.resolve());
  const attach = async (files: File[]): Promise<void> => {
    const { attachments, errors } = await readFiles(files, draftOf(draft).peek().attachments);
    // Some may have been removed or sent meanwhile.
    if (attachments.length > 0) changeDraft(draft, { attachments: [...draftOf(draft).peek().attachments, ...attachments] });
    for (const error of errors) showToast(error, { isError: true });
  };
  return (files) => {
    if (files.length > 0) last.current = last.current.then(() => attach(files));
  };
}

/** The files of a paste. Text that comes along, such as that of a spreadsheet, is more than its picture. */
export function listPasted(event: ClipboardEvent): File[] {
  const data = event.clipboardData;
  return data && !data.types.includes("text/plain") ? [...data.files] : [];
}

/** Files may be dropped anywhere on the page. Returns whether some are held over it. */
export function useDrop(onFiles: (files: File[]) => void): boolean {
  const [isOver, setOver] = useState(false);
  const latest = useRef(onFiles);
  latest.current = onFiles;
  useEffect(() => {
    const hasFiles = (event: DragEvent): boolean => event.dataTransfer?.types.includes("Files") ?? false;
    const onOver = (event: DragEvent): void => {
      if (!hasFiles(event) || !event.dataTransfer) return;
      event.preventDefault();
      event.dataTransfer.dropEffect = "copy";
      setOver(true);
    };
    const onLeave = (event: DragEvent): void => {
      if (event.relatedTarget === null) setOver(false);
    };
    const onDrop = (event: DragEvent): void => {
      if (!hasFiles(event)) return;
      event.preventDefault();
      setOver(false);
      latest.current([...(event.dataTransfer?.files ?? [])]);
    };
    const listeners = { dragover: onOver, dragleave: onLeave, drop: onDrop } as const;
    for (const [name, listener] of Object.entries(listeners)) document.addEventListener(name, listener as EventListener);
    return () => {
      for (const [name, listener] of Object.entries(listeners)) document.removeEventListener(name, listener as EventListener);
    };
  }, []);
  return isOver;
}
