/** Finds characters that could hide or disguise text. The server's questions count the same ones. */

/** Control characters except line feed and tab, characters that reorder text, and characters that show nothing. */
const HIDDEN =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\ud800-\udfff\u{e0000}-\u{e0fff}]/u;
/** Spaces that are not the usual one. */
const SPACE = /[\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000]/u;
/** Letters of other scripts that look like Latin ones. They count only in a word that has Latin letters too. */
const LOOK_ALIKE =
  /[\u0391\u0392\u0395-\u0397\u0399\u039a\u039c\u039d\u039f\u03a1\u03a4\u03a5\u03a7\u03b1\u03bd\u03bf\u03c1\u03c5\u0405\u0406\u0408\u0410\u0412\u0415\u041a\u041c-\u041e\u0420-\u0423\u0425\u0430\u0435\u043e\u0440\u0441\u0443\u0445\u0455\u0456\u0458\u04bb\u0501\u051b\u051d]/u;
const SUSPECT = new RegExp(`${HIDDEN.source}|${SPACE.source}|${LOOK_ALIKE.source}`, "gu");
const LATIN = /[A-Za-z]/;
const WORD = /[\p{L}\p{N}_]/u;

/** A piece of a text: as it is, or one character to spell out. */
export interface TextPiece {
  text: string;
  isHidden: boolean;
}

/** Split a text into what can be shown as it is, and characters to spell out. */
export function splitHidden(text: string): TextPiece[] {
  const pieces: TextPiece[] = [];
  let from = 0;
  for (const match of text.matchAll(SUSPECT)) {
    if (LOOK_ALIKE.test(match[0]) && !isInLatinWord(text, match.index)) continue;
    if (match.index > from) pieces.push({ text: text.slice(from, match.index), isHidden: false });
    pieces.push({ text: match[0], isHidden: true });
    from = match.index + match[0].length;
  }
  if (from < text.length) pieces.push({ text: text.slice(from), isHidden: false });
  return pieces;
}

export function hasHidden(text: string): boolean {
  return splitHidden(text).some((piece) => piece.isHidden);
}

function isInLatinWord(text: string, place: number): boolean {
  let start = place;
  let end = place;
  while (start > 0 && place - start < 60 && WORD.test(text[start - 1] ?? "")) start--;
  while (end < text.length && end - place < 60 && WORD.test(text[end] ?? "")) end++;
  return LATIN.test(text.slice(start, end));
}

/** A text in one piece, for where nothing can be marked: a‹U+202E›b. */
export function spellHidden(text: string): string {
  return splitHidden(text)
    .map((piece) => (piece.isHidden ? `‹${nameCharacter(piece.text)}›` : piece.text))
    .join("");
}

/** U+202E. */
export function nameCharacter(character: string): string {
  return `U+${(character.codePointAt(0) ?? 0).toString(16).toUpperCase().padStart(4, "0")}`;
}

/** What a hidden character does, as the end of a sentence that begins with its name. */
export function describeCharacter(character: string): string {
  if (/[\u202a-\u202e\u2066-\u2069\u200e\u200f\u061c]/u.test(character)) return "turns the reading direction around";
  if (character === "\u001b") return "starts a command for the terminal";
  if (/[\u0000-\u001f\u007f-\u009f\u2028\u2029]/u.test(character)) return "controls the display and is no text";
  if (SPACE.test(character)) return "is a space of another kind";
  if (LOOK_ALIKE.test(character)) return "only looks like a Latin letter";
  return "does not show";
}

/** The kinds of hidden characters of some texts, each once, in order. */
export function listHidden(texts: readonly string[]): string[] {
  const found = texts.flatMap((text) => splitHidden(text)).filter((piece) => piece.isHidden);
  return [...new Set(found.map((piece) => piece.text))];
}
