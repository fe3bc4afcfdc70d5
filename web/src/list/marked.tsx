/** A passage of a search. The server puts U+0002 before each match and U+0003 after it. */

export function Marked({ text }: { text: string }) {
  const parts = text.split(/[\u0002\u0003]/);
  // Even parts are outside of a match, because the marks come in pairs.
  return <>{parts.map((part, index) => (index % 2 === 1 ? <mark key={index}>{part}</mark> : part))}</>;
}
