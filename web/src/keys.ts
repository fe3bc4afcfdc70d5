/** Keys of the page. A part of the page adds its keys while it is on the screen; the newest part wins. */

import { useLayoutEffect, useState } from "preact/hooks";

export interface KeyCommand {
  /** Such as "j", "?", "Ctrl+k", "Alt+Enter", "Escape", "g i" (two keys in a row). Letters are lower case. */
  keys: string;
  /** What it does, for the list of keys. */
  label: string;
  /** Where it works, as a heading in the list of keys. */
  where: string;
  run: (event: KeyboardEvent) => void;
  /** It works while the person types too. */
  whileTyping?: boolean;
  /** False when it would do nothing now. */
  isActive?: () => boolean;
}

const layers: { commands: KeyCommand[] }[] = [];
const SEQUENCE_MS = 1000;
let firstKey = { keys: "", at: 0 };

/** The keys of all that is on the screen. Some work only at times: see `isActive`. */
export function listKeys(): KeyCommand[] {
  return layers.flatMap((layer) => layer.commands);
}

export function addKeys(commands: KeyCommand[]): () => void {
  const layer = { commands };
  layers.push(layer);
  return () => void layers.splice(layers.indexOf(layer), 1);
}

/** Add keys while a component is on the screen. The commands may change at each drawing. */
export function useKeys(commands: KeyCommand[]): void {
  const layer: { commands: KeyCommand[] } = useLayer();
  layer.commands = commands;
}

function useLayer(): { commands: KeyCommand[] } {
  const [layer] = useState(() => ({ commands: [] as KeyCommand[] }));
  // They work as soon as the part is on the screen.
  useLayoutEffect(() => {
    layers.push(layer);
    return () => void layers.splice(layers.indexOf(layer), 1);
  }, [layer]);
  return layer;
}

export function describeKey(event: KeyboardEvent): string {
  const name = event.key.length === 1 ? event.key.toLowerCase() : event.key;
  // Shift is part of a character such as "?", but it is named with other keys.
  const withShift = event.shiftKey && (event.key.length > 1 || /[a-z]/.test(name));
  return `${event.ctrlKey || event.metaKey ? "Ctrl+" : ""}${event.altKey ? "Alt+" : ""}${withShift ? "Shift+" : ""}${name}`;
}

export function isTyping(target: EventTarget | null): boolean {
  if (!(target instanceof HTMLElement)) return false;
  if (target instanceof HTMLInputElement) return !["checkbox", "radio", "button", "range"].includes(target.type);
  return target.isContentEditable || target instanceof HTMLTextAreaElement || target instanceof HTMLSelectElement;
}

/** Enter and the space bar press the button or follow the link that has the focus. */
function isPressing(event: KeyboardEvent): boolean {
  return (event.key === "Enter" || event.key === " ") && event.target instanceof Element && event.target.closest("a, button, summary") !== null;
}

export function startKeys(): void {
  document.addEventListener("keydown", (event) => {
    if (event.defaultPrevented || event.isComposing || isPressing(event) || document.querySelector("dialog[open]")) return;
    const pressed = describeKey(event);
    const isSecond = performance.now() - firstKey.at < SEQUENCE_MS && firstKey.keys !== "";
    const wanted = isSecond ? [`${firstKey.keys} ${pressed}`, pressed] : [pressed];
    firstKey = { keys: isTyping(event.target) ? "" : pressed, at: performance.now() };
    for (const keys of wanted) {
      for (const layer of layers.toReversed()) {
        const command = layer.commands.find((one) => one.keys === keys && (one.isActive?.() ?? true));
        if (!command || (isTyping(event.target) && !command.whileTyping)) continue;
        event.preventDefault();
        command.run(event);
        return;
      }
    }
  });
}
