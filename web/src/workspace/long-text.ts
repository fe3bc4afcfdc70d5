/** A long text by its lines, without a string for each of them, and search in it. */

export interface TextLines {
  text: string;
  /** Where each line starts. */
  starts: readonly number[];
  /** Where a line ends, without its line break. */
  ends: (index: number) => number;
  /** There are more lines than browsers can scroll through. */
  isCut: boolean;
}

/** Browsers cannot scroll further than some million pixels, so the last lines of a longer text are left out. */
const MOST_LINES = 500_000;
export const MOST_MATCHES = 5000;

export function indexLines(text: string): TextLines {
  const starts = [0];
  for (let at = text.indexOf("\n"); at >= 0 && starts.length < MOST_LINES; at = text.indexOf("\n", at + 1)) starts.push(at + 1);
  if (starts.length > 1 && starts.at(-1) === text.length) starts.pop();
  const lastBreak = text.indexOf("\n", starts.at(-1));
  const isCut = starts.length === MOST_LINES && lastBreak >= 0 && lastBreak < text.length - 1;
  const ends = (index: number): number => {
    const next = starts[index + 1];
    if (next !== undefined) return next - 1;
    const end = text.indexOf("\n", starts[index]);
    return end < 0 ? text.length : end;
  };
  return { text, starts, ends, isCut };
}

export function readLine(lines: TextLines, index: number, longest: number): { start: number; text: string } {
  const start = lines.starts[index] ?? 0;
  return { start, text: lines.text.slice(start, Math.min(lines.ends(index), start + longest)) };
}

/** The line of a place in the text. */
export function lineAt({ starts }: TextLines, place: number): number {
  let low = 0;
  let high = starts.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if ((starts[middle] ?? 0) <= place) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}

/** Where the words are in the text. Upper and lower case are the same. */
export function findMatches(text: string, words: string): (readonly [start: number, end: number])[] {
  if (!words) return [];
  const found: (readonly [number, number])[] = [];
  const pattern = new RegExp(words.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"), "gi");
  for (const match of text.matchAll(pattern)) {
    found.push([match.index, match.index + match[0].length]);
    if (found.length >= MOST_MATCHES) break;
  }
  return found;
}

const PICTURES: [type: string, start: readonly number[], at: number][] = [
  ["image/png", [0x89, 0x50, 0x4e, 0x47], 0],
  ["image/jpeg", [0xff, 0xd8, 0xff], 0],
  ["image/gif", [0x47, 0x49, 0x46, 0x38], 0],
  ["image/webp", [0x57, 0x45, 0x42, 0x50], 8],
];

/** The media type of a picture by its first bytes. Empty for everything else. */
export function findPictureType(head: Uint8Array): string {
  return PICTURES.find(([, start, at]) => start.every((byte, index) => head[at + index] === byte))?.[0] ?? "";
}
