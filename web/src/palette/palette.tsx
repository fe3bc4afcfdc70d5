/** The palette (Ctrl K): type to find a command, a session or a passage. Also what else floats over the page. */

import { signal } from "@preact/signals";
import { useKeys } from "../keys.ts";
import { SessionDialogs } from "../list/session-dialogs.tsx";
import { lazy } from "../ui/lazy.tsx";

const PaletteDialog = lazy(async () => (await import("./palette-dialog.tsx")).PaletteDialog);
const KeysDialog = lazy(async () => (await import("./keys-dialog.tsx")).KeysDialog);

const open = signal<"" | "palette" | "keys">("");

export function openPalette(): void {
  open.value = "palette";
}

export function openKeys(): void {
  open.value = "keys";
}

export function Palette() {
  useKeys([
    { keys: "Ctrl+k", label: "Commands", where: "Everywhere", run: openPalette, whileTyping: true },
    { keys: "?", label: "These keys", where: "Everywhere", run: openKeys },
  ]);
  const close = (): void => void (open.value = "");
  return (
    <>
      {open.value === "palette" && <PaletteDialog onClose={close} onKeys={openKeys} />}
      {open.value === "keys" && <KeysDialog onClose={close} />}
      <SessionDialogs />
    </>
  );
}
