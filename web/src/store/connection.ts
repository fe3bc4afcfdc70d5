/** Whether the server can be reached, as the streams see it. */

import { signal } from "@preact/signals";

export type Connection = "connecting" | "online" | "offline";

export const connection = signal<Connection>("connecting");
/** When the page last heard from the server, in milliseconds. */
export const lastSeen = signal(Date.now());

export function noteOnline(): void {
  lastSeen.value = Date.now();
  connection.value = "online";
}

export function noteOffline(): void {
  if (connection.value === "online") lastSeen.value = Date.now();
  connection.value = "offline";
}
