/** A button that copies a text and says so for a moment. */

import { useEffect, useState } from "preact/hooks";
import { showToast } from "./toasts.tsx";
import { Icon } from "./icon.tsx";

const SHOWN_FOR = 1500;

interface CopyButtonProps {
  text: string;
  label: string;
  class?: string;
}

export function CopyButton({ text, label, class: more = "b bare ico" }: CopyButtonProps) {
  const [isDone, setDone] = useState(false);
  useEffect(() => {
    if (!isDone) return undefined;
    const timer = setTimeout(() => setDone(false), SHOWN_FOR);
    return () => clearTimeout(timer);
  }, [isDone]);
  return (
    <button
      type="button"
      class={`copy ${more}`}
      aria-label={isDone ? "Copied" : label}
      title={isDone ? "Copied" : label}
      onClick={() => void copyText(text).then(setDone)}
    >
      <Icon name={isDone ? "check" : "copy"} class="sm" />
    </button>
  );
}

/** Copy a text. Returns whether it worked, and says so when it did not. */
export async function copyText(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    if (copyBySelection(text)) return true;
    showToast("The browser does not let this page copy.", { isError: true });
    return false;
  }
}

/** The clipboard of the browser works only on https and localhost. This works everywhere. */
function copyBySelection(text: string): boolean {
  const area = document.createElement("textarea");
  area.value = text;
  area.className = "sr";
  document.body.append(area);
  area.select();
  const isDone = document.execCommand("copy");
  area.remove();
  return isDone;
}
