/** Walk through one's own messages with the arrow keys, as in a shell. */

import { useRef } from "preact/hooks";
import { readText } from "../fold-state.ts";
import type { OpenSession } from "../store/open-session.ts";
import { isOwnText } from "./message-parts.ts";

interface History {
  /** Returns whether the key was used. */
  onKeyDown: (event: KeyboardEvent, text: string) => boolean;
}

export function useHistory(session: OpenSession, show: (text: string) => void): History {
  /** How far back the shown message is, and its text. An edited message is no longer walked from. */
  const place = useRef({ back: 0, text: "" });
  const onKeyDown = (event: KeyboardEvent, text: string): boolean => {
    const isPlain = !event.shiftKey && !event.altKey && !event.ctrlKey && !event.metaKey;
    if (!isPlain || (event.key !== "ArrowUp" && event.key !== "ArrowDown")) return false;
    const { current } = place;
    if (text === "" || text !== current.text) current.back = 0;
    if (text !== "" && current.back === 0) return false;
    const messages = listOwn(session);
    const back = current.back + (event.key === "ArrowUp" ? 1 : -1);
    if (back < 0 || back > messages.length) return back > 0;
    place.current = { back, text: messages.at(-back) ?? "" };
    if (back === 0) place.current.text = "";
    show(place.current.text);
    return true;
  };
  return { onKeyDown };
}

/** The texts of the person's messages, the newest last, without repeats. */
function listOwn({ view }: OpenSession): string[] {
  const said = view.items.flatMap((item) => (item.kind === "message" ? [item.message.parts] : []));
  const parts = [...said, ...view.queue.map((one) => one.parts)];
  const texts = parts.map((one) => readText(one.filter(isOwnText)).trim());
  return texts.filter((text, at) => text !== "" && text !== texts[at + 1]);
}
