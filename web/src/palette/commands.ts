/** Commands of the palette. A part of the page adds its commands while it is on the screen. */

import { signal } from "@preact/signals";
import type { IconName } from "../ui/icon.tsx";

export interface Command {
  label: string;
  run: () => void;
  /** What it works on, in a few words. */
  hint?: string;
  icon?: IconName;
  /** The key that does the same, as in `keys.ts`. */
  keys?: string;
  /** The heading that it stands under. Without one: "This session". */
  group?: string;
}

const layers = signal<readonly (readonly Command[])[]>([]);

/** Returns a function that takes the commands away. */
export function addCommands(commands: readonly Command[]): () => void {
  layers.value = [...layers.value, commands];
  return () => void (layers.value = layers.value.filter((one) => one !== commands));
}

export function listCommands(): Command[] {
  return layers.value.flat();
}
