/** Images and files that go with a message: read, made small enough, and checked against the server's limits. */

import type { Attachment } from "../generated/api.ts";
import { plural } from "../ui/format.ts";

/** The server takes bodies of 8 MiB. Base64 makes files longer by a third, and the text needs room too. */
const MOST_BASE64 = 8 * 1024 * 1024 - 256 * 1024;
const MOST_FILES = 100;
/** A larger image is made smaller: no model sees more. */
const LONGEST_EDGE = 2048;
const MOST_IMAGE_BYTES = 1_500_000;
/** What models read and browsers show. Other images are converted. */
const IMAGE_TYPES = ["image/png", "image/jpeg", "image/gif", "image/webp"];
const JPEG_QUALITY = 0.85;

export interface ReadFiles {
  attachments: Attachment[];
  /** A sentence for each file that was left out. */
  errors: string[];
}

/** Read files for a message that has some already. */
export async function readFiles(files: readonly File[], before: readonly Attachment[]): Promise<ReadFiles> {
  const attachments: Attachment[] = [];
  const errors: string[] = [];
  let used = before.reduce((sum, one) => sum + measure(one), 0);
  for (const file of files) {
    if (before.length + attachments.length >= MOST_FILES) {
      errors.push(`A message may have ${MOST_FILES} files. ${quote(file.name)} was left out.`);
      continue;
    }
    const read = await readFile(file);
    if (typeof read === "string") errors.push(read);
    else if (used + measure(read) > MOST_BASE64) errors.push(describeTooLarge(file, used));
    else {
      attachments.push(read);
      used += measure(read);
    }
  }
  return { attachments, errors };
}

/** The number of characters that it has in a request. */
function measure({ data = "", text = "", name = "" }: Attachment): number {
  return data.length + text.length + name.length + 100;
}

/** How many bytes the file of an attachment has. */
export function countBytes({ data = "", text = "" }: Attachment): number {
  return data ? (data.length * 3) / 4 - (/=*$/.exec(data)?.[0].length ?? 0) : text.length;
}

async function readFile(file: File): Promise<Attachment | string> {
  // Base64 of it would not fit: do not read it at all.
  if (!file.type.startsWith("image/") && (file.size * 4) / 3 > MOST_BASE64) return describeTooLarge(file, 0);
  try {
    const image = file.type.startsWith("image/") ? await readImage(file) : null;
    if (image) return image;
    const data = await encodeBase64(file);
    if (data === "") return `${quote(file.name)} is empty, so it was left out.`;
    return { type: "file", name: file.name.slice(-200), media_type: await findMediaType(file), data };
  } catch {
    return `${quote(file.name)} cannot be read. A folder cannot be attached: choose its files.`;
  }
}

/** Null for an image that the browser cannot draw, such as an SVG. It goes along as a file. */
async function readImage(file: File): Promise<Attachment | null> {
  const bitmap = await createImageBitmap(file).catch(() => null);
  if (!bitmap) return null;
  const scale = Math.min(1, LONGEST_EDGE / Math.max(bitmap.width, bitmap.height));
  const isFine = IMAGE_TYPES.includes(file.type) && scale === 1 && file.size <= MOST_IMAGE_BYTES;
  const blob = isFine ? file : await redraw(bitmap, scale);
  bitmap.close();
  return { type: "image", name: file.name.slice(-200), media_type: blob.type, data: await encodeBase64(blob) };
}

async function redraw(bitmap: ImageBitmap, scale: number): Promise<Blob> {
  const canvas = document.createElement("canvas");
  canvas.width = Math.max(1, Math.round(bitmap.width * scale));
  canvas.height = Math.max(1, Math.round(bitmap.height * scale));
  const context = canvas.getContext("2d");
  if (!context) throw new Error("The image cannot be drawn.");
  // JPEG has no transparency.
  context.fillStyle = "white";
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  const blob = await new Promise<Blob | null>((resolve) => canvas.toBlob(resolve, "image/jpeg", JPEG_QUALITY));
  if (!blob) throw new Error("The image cannot be drawn.");
  return blob;
}

function encodeBase64(blob: Blob): Promise<string> {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(String(reader.result).split(",", 2)[1] ?? "");
    reader.onerror = () => reject(reader.error ?? new Error("unreadable"));
    reader.readAsDataURL(blob);
  });
}

/** Browsers know few kinds of text. Whatever is UTF-8 without null characters is text, so that every model reads it. */
async function findMediaType(file: File): Promise<string> {
  if (file.type.startsWith("text/") || file.type === "application/pdf") return file.type;
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
    return text.includes("\0") ? file.type : "text/plain";
  } catch {
    return file.type;
  }
}

function describeTooLarge(file: File, used: number): string {
  const most = formatBytes((MOST_BASE64 * 3) / 4);
  const together = used > 0 ? "together with the others " : "";
  return `${quote(file.name)} is too large: it has ${formatBytes(file.size)}, and ${together}a message may have ${most} of files.`;
}

export function formatBytes(bytes: number): string {
  if (bytes < 1000) return plural(bytes, "byte");
  return bytes < 999_500 ? `${Math.round(bytes / 1000)}\u202fkB` : `${(bytes / 1_000_000).toFixed(1)}\u202fMB`;
}

function quote(name: string): string {
  return `“${name || "The file"}”`;
}
