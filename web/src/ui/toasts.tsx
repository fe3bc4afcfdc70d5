/** Short results of what the person just did, with Undo. They stay while the pointer or the focus is on them. */

import { signal } from "@preact/signals";
import { Icon } from "./icon.tsx";

const SHOWN_FOR = 6000;

interface Toast {
  id: number;
  text: string;
  isError: boolean;
  undo?: (() => void) | undefined;
}

const toasts = signal<Toast[]>([]);
const timers = new Map<number, ReturnType<typeof setTimeout>>();
let lastId = 0;

/** Returns a function that takes the toast away, as when what it offers was done elsewhere. */
export function showToast(text: string, options: { undo?: () => void; isError?: boolean } = {}): () => void {
  const toast = { id: ++lastId, text, isError: options.isError ?? false, undo: options.undo };
  toasts.value = [...toasts.value.slice(-2), toast];
  startTimer(toast.id);
  return () => drop(toast.id);
}

/** Do something that may fail, and say why when it does. Returns whether it worked. */
export async function attempt(action: () => Promise<unknown>): Promise<boolean> {
  try {
    await action();
    return true;
  } catch (error) {
    showToast(error instanceof Error ? error.message : String(error), { isError: true });
    return false;
  }
}

function startTimer(id: number): void {
  timers.set(id, setTimeout(() => drop(id), SHOWN_FOR));
}

function drop(id: number): void {
  clearTimeout(timers.get(id));
  timers.delete(id);
  toasts.value = toasts.value.filter((one) => one.id !== id);
}

export function Toasts() {
  return (
    <div class="toasts" role="status" aria-live="polite">
      {toasts.value.map((toast) => (
        <div
          key={toast.id}
          class={toast.isError ? "toast error" : "toast"}
          onPointerEnter={() => clearTimeout(timers.get(toast.id))}
          onPointerLeave={() => startTimer(toast.id)}
          onFocusCapture={() => clearTimeout(timers.get(toast.id))}
          onBlurCapture={() => startTimer(toast.id)}
        >
          {toast.isError && <Icon name="fail" class="bad" />}
          <span>{toast.text}</span>
          {toast.undo && (
            <button type="button" class="b bare acc" onClick={() => (toast.undo?.(), drop(toast.id))}>
              Undo
            </button>
          )}
          <button type="button" class="b bare ico" aria-label="Dismiss" onClick={() => drop(toast.id)}>
            <Icon name="x" class="sm" />
          </button>
        </div>
      ))}
    </div>
  );
}
