/** Light or dark: as the system says, unless the person chose one on this device. */

import { effect, signal } from "@preact/signals";

export type Theme = "system" | "light" | "dark";
const KEY = "treadle.theme";

function readTheme(): Theme {
  const stored = localStorage.getItem(KEY);
  return stored === "light" || stored === "dark" ? stored : "system";
}

export const theme = signal<Theme>(readTheme());

export function startTheme(): void {
  effect(() => {
    if (theme.value === "system") {
      localStorage.removeItem(KEY);
      document.documentElement.removeAttribute("data-theme");
    } else {
      localStorage.setItem(KEY, theme.value);
      document.documentElement.dataset.theme = theme.value;
    }
  });
}

/** System, light, dark, and again. */
export function switchTheme(): void {
  theme.value = theme.value === "system" ? "light" : theme.value === "light" ? "dark" : "system";
}
