/** A passage of a search. The server puts U+0002 before each match and U+0003 after it. */

import { VisibleText } from "../ui/visible-text.tsx";

export function Marked({ text }: { text: string }) {
  const parts = text.split(/[\u0002\u0003]/);
  // Even parts are outside of a match, because the marks come in pairs.
  return (
    <>
      {parts.map((part, index) => {
        const shown = <VisibleText key={index} text={part} />;
        return index % 2 === 1 ? <mark key={index}>{shown}</mark> : shown;
      })}
    </>
  );
}
