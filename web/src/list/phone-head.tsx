/** The head of the list on a phone: its name, the search, and filters to tap. */

import { switchTheme, theme } from "../theme.ts";
import { openPalette } from "../palette/palette.tsx";
import { sessions } from "../store/sessions.ts";
import { Icon } from "../ui/icon.tsx";
import { Menu, type MenuItem } from "../ui/menu.tsx";
import { listFilters, STATUS_FILTERS } from "./filter-menu.tsx";
import { filters, setFilters } from "./list-state.ts";
import { findStanding } from "./session-status.ts";

export function PhoneHead({ isSearching, onSearch }: { isSearching: boolean; onSearch: () => void }) {
  const more: MenuItem[] = [
    { label: "Commands", icon: "term", run: openPalette },
    { label: `Theme: ${theme.value}`, icon: "moon", run: switchTheme },
    ...listFilters().slice(STATUS_FILTERS.length),
  ];
  return (
    <>
      <header class="bar phone-bar">
        <h1>Sessions</h1>
        <span class="sp" />
        {!isSearching && (
          <button type="button" class="b bare ico" aria-label="Search" onClick={onSearch}>
            <Icon name="search" />
          </button>
        )}
        <Menu label="More" items={more} />
      </header>
      <div class="pills" role="group" aria-label="Filter">
        {STATUS_FILTERS.map(({ status, label }) => {
          const isOn = filters.value.status === status && !filters.value.isArchived;
          return (
            <button
              key={status}
              type="button"
              class={isOn ? "on" : ""}
              aria-pressed={isOn}
              onClick={() => setFilters({ status, isArchived: false })}
            >
              {label} {countSessions(status)}
            </button>
          );
        })}
      </div>
    </>
  );
}

function countSessions(status: string): string {
  if (status !== "asks" && status !== "running") return "";
  let count = 0;
  for (const one of sessions.value.values()) if (!one.archived && findStanding(one) === status) count++;
  return count > 0 ? String(count) : "";
}
