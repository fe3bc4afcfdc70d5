/** What holds for this browser only: the theme, notifications and the login. */

import { logOut, me } from "../store/me.ts";
import { theme } from "../theme.ts";
import { Choice } from "../ui/choice.tsx";
import { attempt } from "../ui/toasts.tsx";
import { Line, Section } from "./section.tsx";

const THEMES = [
  { value: "system", label: "As the system" },
  { value: "light", label: "Light" },
  { value: "dark", label: "Dark" },
] as const;

export function DeviceSection() {
  return (
    <Section id="device" title="This device">
      <Line icon="moon" name="Theme">
        <Choice label="Theme" value={theme.value} options={THEMES} onChange={(value) => (theme.value = value)} />
      </Line>
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
    </Section>
  );
}
