/** The left side of the page while the settings are open. */

import { signal } from "@preact/signals";
import { navigate } from "../router.ts";
import { me } from "../store/me.ts";
import { Icon } from "../ui/icon.tsx";
import { SECTIONS } from "./sections.ts";

/** The section that the reader is in. */
export const readSection = signal(SECTIONS[0]?.id ?? "");

export function SettingsSide() {
  return (
    <nav class="side" aria-label="Settings">
      <div class="side-h settings-h">
        <button type="button" class="b bare" onClick={() => navigate({ page: "home" })}>
          <Icon name="back" />
          Sessions
        </button>
      </div>
      <div class="nav">
        {SECTIONS.map(({ id, label, icon }) => (
          <a key={id} href={`/settings/${id}`} {...(readSection.value === id ? { "aria-current": "true" as const } : {})}>
            <Icon name={icon} />
            {label}
          </a>
        ))}
      </div>
      <span class="sp" />
      <p class="settings-foot m3 t12">
        treadle {me.value?.version}
        <br />
        {location.host}
      </p>
    </nav>
  );
}
