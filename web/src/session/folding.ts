/** What the reader has unfolded in a conversation. It outlives the rows, which come and go while scrolling. */

import { signal } from "@preact/signals";

export class Folding {
  /** Grows at every change. */
  readonly version = signal(0);
  /** True when everything is unfolded. */
  readonly isAllOpen = signal(false);
  private readonly chosen = new Map<string, boolean>();

  isOpen(key: string, byDefault: boolean): boolean {
    return this.chosen.get(key) ?? (byDefault || this.isAllOpen.peek());
  }

  isChosen(key: string): boolean {
    return this.chosen.get(key) ?? false;
  }

  set(key: string, isOpen: boolean): void {
    this.chosen.set(key, isOpen);
    this.version.value++;
  }

  toggleAll(): void {
    this.chosen.clear();
    this.isAllOpen.value = !this.isAllOpen.value;
    this.version.value++;
  }
}
