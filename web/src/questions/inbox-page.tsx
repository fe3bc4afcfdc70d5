/** The inbox: the open questions of all sessions. */

import { useTitle } from "../ui/title.ts";

export function InboxPage(_: { question: string }) {
  useTitle("Inbox");
  return <main class="main" />;
}
