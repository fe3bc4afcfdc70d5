/** The switch for notifications on this device. The browser asks only after the button was pressed. */

import { Line } from "../settings/section.tsx";
import { attempt } from "../ui/toasts.tsx";
import { notifying, switchNotifications, type Notifying } from "./notifications.ts";

const TEXTS: Record<Notifying, string> = {
  on: "A new question is shown while you look elsewhere: the session and the tool, nothing more",
  off: "Off. Turn them on to hear of questions while you look elsewhere",
  blocked: "This browser blocks them. Allow notifications in its settings of this site, then load the page again",
  impossible: "This browser shows none for this page. They need HTTPS, or the page on this machine",
};

export function NotificationLine() {
  const state = notifying.value;
  const canSwitch = state === "on" || state === "off";
  return (
    <Line
      icon="inbox"
      name="Notifications"
      actions={
        canSwitch && (
          <button type="button" class="b bare" aria-pressed={state === "on"} onClick={() => void attempt(switchNotifications)}>
            {state === "on" ? "Turn off" : "Turn on"}
          </button>
        )
      }
    >
      {TEXTS[state]}
    </Line>
  );
}
