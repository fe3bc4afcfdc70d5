/** What can be done with a message of a file. The build of the export puts this module in the place of `session/message-menu.tsx`. */

import { CopyButton } from "../ui/copy-button.tsx";

export function MessageMenu({ kind, text }: { kind: "message" | "reply"; text: string }) {
  return (
    <span class="msg-acts" role="group" aria-label={kind === "message" ? "Your message" : "Reply"}>
      <CopyButton text={text} label="Copy" />
    </span>
  );
}
