/** Text that somebody else wrote, with every hidden character spelled out. Copying gives the characters themselves. */

import { describeCharacter, nameCharacter, splitHidden } from "./hidden-text.ts";

export { hasHidden } from "./hidden-text.ts";

/** `U+202E` as a chip. */
export function HiddenMark({ character }: { character: string }) {
  const name = nameCharacter(character);
  return (
    <span class="u" data-character={character} title={`${name} ${describeCharacter(character)}`}>
      {name}
    </span>
  );
}

/** Puts the characters themselves into a copied text, in place of their chips. */
function copyExactly(event: ClipboardEvent): void {
  const selection = document.getSelection();
  if (!selection || selection.isCollapsed || event.defaultPrevented) return;
  const marks = [...document.querySelectorAll<HTMLElement>(".u[data-character]")].filter((mark) => selection.containsNode(mark, true));
  if (marks.length === 0) return;
  const texts = marks.map((mark) => mark.firstChild).filter((node) => node instanceof Text);
  const names = texts.map((text) => text.data);
  texts.forEach((text, place) => (text.data = marks[place]?.dataset.character ?? ""));
  event.clipboardData?.setData("text/plain", selection.toString());
  event.preventDefault();
  texts.forEach((text, place) => (text.data = names[place] ?? ""));
}

if (typeof document !== "undefined") document.addEventListener("copy", copyExactly);

interface VisibleTextProps {
  text: string;
  /** Keep words together, so that no line breaks inside of an option such as `-u`. */
  keepWords?: boolean;
}

export function VisibleText({ text, keepWords = false }: VisibleTextProps) {
  return (
    <>
      {splitHidden(text).map((piece, place) =>
        piece.isHidden ? (
          <HiddenMark key={place} character={piece.text} />
        ) : keepWords ? (
          splitWords(piece.text)
        ) : (
          piece.text
        ),
      )}
    </>
  );
}

const LONGEST_KEPT = 40;

function splitWords(text: string) {
  return text.split(/(\s+)/).map((word, place) =>
    word.includes("-") && word.length <= LONGEST_KEPT ? (
      <span key={place} class="w">
        {word}
      </span>
    ) : (
      word
    ),
  );
}
