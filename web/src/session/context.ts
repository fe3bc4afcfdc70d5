/** What the rows of a conversation have in common. */

import { createContext } from "preact";
import { useContext } from "preact/hooks";
import type { ReadonlySignal } from "@preact/signals";
import type { Live } from "../store/live.ts";
import type { View } from "../view.ts";
import type { Folding } from "./folding.ts";

/** What a conversation is drawn from: the present of a session, a moment of its past, or an export. */
export interface ConversationSource {
  view: View;
  version: ReadonlySignal<number>;
  live: Live | null;
  liveVersion: ReadonlySignal<number>;
  sessionId: string;
  /** Nothing can be answered, stopped or changed. */
  isPast: boolean;
}

interface Shared {
  source: ConversationSource;
  folding: Folding;
}

export const ConversationContext = createContext<Shared | null>(null);

export function useConversation(): Shared {
  const shared = useContext(ConversationContext);
  if (!shared) throw new Error("This is drawn outside of a conversation.");
  return shared;
}
