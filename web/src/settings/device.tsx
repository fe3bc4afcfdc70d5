/** What holds for this browser only: the theme, notifications and the login. */

import { useState } from "preact/hooks";
import { api } from "../api.ts";
import type { TicketView } from "../generated/api.ts";
import { NotificationLine } from "../questions/notification-line.tsx";
import { logOut, me } from "../store/me.ts";
import { theme } from "../theme.ts";
import { Choice } from "../ui/choice.tsx";
import { CopyButton } from "../ui/copy-button.tsx";
import { attempt } from "../ui/toasts.tsx";
import { Line, List, Section } from "./section.tsx";

const THEMES = [
  { value: "system", label: "As the system" },
  { value: "light", label: "Light" },
  { value: "dark", label: "Dark" },
] as const;

export function DeviceSection() {
  return (
    <Section id="device" title="This device">
      <List>
        <Line icon="moon" name="Theme">
          <Choice label="Theme" value={theme.value} options={THEMES} onChange={(value) => (theme.value = value)} />
        </Line>
        <NotificationLine />
        <Line
          icon="out"
          name="Login"
          actions={
            <button type="button" class="b bare" onClick={() => void attempt(logOut)}>
              Log out
            </button>
          }
        >
          Logged in as {me.value?.name}
        </Line>
        <OtherDevice />
      </List>
    </Section>
  );
}

/** A link that logs another browser in, with the same rights. */
function OtherDevice() {
  const [link, setLink] = useState("");
  const make = (): void =>
    void attempt(async () => {
      const ticket = await api.post<TicketView>("/v1/tickets");
      setLink(location.origin + ticket.path);
    });
  const isLocal = ["localhost", "127.0.0.1", "[::1]"].includes(location.hostname);
  return (
    <Line
      icon="phone"
      name="Another device"
      actions={
        <button type="button" class="b bare" onClick={make}>
          {link ? "Make a new link" : "Make a login link"}
        </button>
      }
    >
      {link ? (
        <>
          <span class="login-link">
            <code>{link}</code>
            <CopyButton text={link} label="Copy the link" />
          </span>
          It works once, for ten minutes.{isLocal && ` Only this machine can open ${location.hostname}.`}
        </>
      ) : (
        "A link logs another browser in, with the rights of this one"
      )}
    </Line>
  );
}
