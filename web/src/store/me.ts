/** Who is logged in, and what they may do. The page shows no button that the server would refuse. */

import { computed, signal } from "@preact/signals";
import { api, ApiError } from "../api.ts";
import type { MeView } from "../generated/api.ts";
import { isLinkUsedUp, login } from "./login.ts";

export const me = signal<MeView | null>(null);
/** Why the server could not be asked at the start. Empty while all is well. */
export const startError = signal("");

export const canSend = computed(() => me.value?.rights.includes("send") ?? false);
export const canApprove = computed(() => me.value?.rights.includes("approve") ?? false);

/** All tabs of a browser have one login. */
let tabs: BroadcastChannel | null = null;

/** A tab that is logged out goes on with a login of another tab. One that shows what somebody else may do starts again. */
export function followOtherTabs(): void {
  tabs = new BroadcastChannel("treadle-login");
  tabs.onmessage = ({ data: name }: MessageEvent<string>) => {
    const known = me.peek()?.name;
    if (known !== undefined && known !== name) location.reload();
    else if (login.peek() === "needed") void loadMe();
  };
}

export async function loadMe(): Promise<void> {
  try {
    const found = (me.value = await api.get<MeView>("/v1/me"));
    login.value = "done";
    startError.value = "";
    isLinkUsedUp.value = false;
    tabs?.postMessage(found.name);
  } catch (error) {
    if (error instanceof ApiError && (error.status === 401 || error.status === 403)) login.value = "needed";
    else startError.value = error instanceof Error ? error.message : String(error);
  }
}

export async function logIn(token: string): Promise<void> {
  await api.post("/login", { token });
  await loadMe();
}

export async function logOut(): Promise<void> {
  await api.post("/logout");
  me.value = null;
  login.value = "needed";
}
