/** The title of the tab: how many questions are open, and what is on the screen. */

import { effect, signal } from "@preact/signals";
import { useEffect } from "preact/hooks";

const shown = signal("");
/** How many questions wait for the person. */
export const titleCount = signal(0);

export function startTitle(): void {
  effect(() => {
    const count = titleCount.value > 0 ? `(${titleCount.value}) ` : "";
    document.title = `${count}${shown.value ? `${shown.value} – ` : ""}treadle`;
  });
}

/** Name what is on the screen while a component is there. */
export function useTitle(name: string): void {
  useEffect(() => {
    shown.value = name;
    return () => void (shown.value = "");
  }, [name]);
}
