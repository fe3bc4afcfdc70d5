/** Whether this browser is logged in, and what the login page says about it. */

import { signal } from "@preact/signals";

export type Login = "unknown" | "needed" | "done";

export const login = signal<Login>("unknown");
/** The link that opened the page was used before, or is too old. The server says so in the address. */
export const isLinkUsedUp = signal(false);

/** The server answered with 401: it does not know the login any more. */
export function noteLoginEnded(): void {
  if (login.value === "done") login.value = "needed";
}

/** Read what the login link says, and take it out of the address. */
export function readLoginLink(): void {
  if (!location.search) return;
  isLinkUsedUp.value = new URLSearchParams(location.search).get("login") === "used-up";
  history.replaceState(null, "", location.pathname + location.hash);
}
