/** Which sessions the list shows: by status, agent and workspace, or the archived ones. */

import { sortedSessions } from "../store/sessions.ts";
import { Icon } from "../ui/icon.tsx";
import { Menu, type MenuItem } from "../ui/menu.tsx";
import { NO_FILTERS, type Filters } from "./groups.ts";
import { filters, hasFilters, setFilters } from "./list-state.ts";
import { isHelper, nameWorkspace } from "./session-status.ts";

export const STATUS_FILTERS: { status: Filters["status"]; label: string }[] = [
  { status: "", label: "All" },
  { status: "asks", label: "Needs you" },
  { status: "running", label: "Running" },
  { status: "pinned", label: "Pinned" },
  { status: "failed", label: "Failed" },
  { status: "done", label: "Done" },
];
const MOST_CHOICES = 12;

export function FilterMenu() {
  return (
    <Menu label="Filter sessions" items={listFilters()} class={hasFilters.value ? "b bare ico on" : "b bare ico"}>
      <Icon name="filter" />
      <span class="sr">Filter sessions{hasFilters.value ? ", a filter is on" : ""}</span>
    </Menu>
  );
}

export function listFilters(): MenuItem[] {
  const { status, agent, workspace, isArchived } = filters.value;
  const items: MenuItem[] = STATUS_FILTERS.map((one) => ({
    label: one.label,
    isChecked: one.status === status && !isArchived,
    run: () => setFilters({ status: one.status, isArchived: false }),
  }));
  items.push({ label: "Archived", isChecked: isArchived, run: () => setFilters({ isArchived: true, status: "" }) });
  items.push(...listChoices("Agent", "Every agent", agent, findValues("agent"), (value) => setFilters({ agent: value })));
  const folders = findValues("workspace");
  items.push(...listChoices("Workspace", "Every workspace", workspace, folders, (value) => setFilters({ workspace: value })));
  if (hasFilters.value) items.push({ label: "Show all", heading: " ", icon: "x", run: () => setFilters(NO_FILTERS) });
  return items;
}

/** The values in use, the most recent first. */
function findValues(field: "agent" | "workspace"): string[] {
  const values = new Set(sortedSessions.value.filter((one) => !isHelper(one)).map((one) => one[field]).filter(Boolean));
  return [...values].slice(0, MOST_CHOICES);
}

function listChoices(heading: string, all: string, chosen: string, values: string[], choose: (value: string) => void): MenuItem[] {
  if (values.length < 2 && !chosen) return [];
  const items: MenuItem[] = values.map((value) => ({
    label: heading === "Workspace" ? nameWorkspace(value) : value,
    hint: heading === "Workspace" ? value : "",
    isChecked: value === chosen,
    run: () => choose(value),
  }));
  return [{ label: all, heading, isChecked: chosen === "", run: () => choose("") }, ...items];
}
