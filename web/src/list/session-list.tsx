/** The rows of the list. Only those that can be seen are drawn. */

import { useSignal } from "@preact/signals";
import { useRef } from "preact/hooks";
import type { SessionView } from "../generated/api.ts";
import { useKeys } from "../keys.ts";
import { canSend } from "../store/me.ts";
import { areSessionsLoaded, hasOlder, loadOlder, sessions } from "../store/sessions.ts";
import { Icon } from "../ui/icon.tsx";
import { MenuList, type MenuPlace } from "../ui/menu.tsx";
import { attempt } from "../ui/toasts.tsx";
import { listSessionActions, startRename, toggleArchive, togglePin } from "./actions.ts";
import { NO_FILTERS, type Entry } from "./groups.ts";
import { currentId, entries, filters, hasFilters, setFilters, unfolded, usualAgent } from "./list-state.ts";
import { isPhone } from "./phone.ts";
import { SessionRow } from "./session-row.tsx";
import { useEndOfList, useRowWindow, type RowWindow } from "./window.ts";

/** Heights in rem, on a wide page and on a phone. The style sheet fills the rows to these heights. */
const HEIGHTS = { head: [2.75, 2.75], row: [3.25, 3.875], kid: [2.75, 3], more: [2, 2.75] } as const;

function findHeight(entry: Entry): number {
  const kind = entry.kind === "row" && entry.isKid ? "kid" : entry.kind;
  return HEIGHTS[kind][isPhone.value ? 1 : 0];
}

let isLoadingOlder = false;

function loadMore(): void {
  if (!areSessionsLoaded.value || !hasOlder.value || isLoadingOlder) return;
  isLoadingOlder = true;
  void attempt(loadOlder).finally(() => (isLoadingOlder = false));
}

export function SessionList() {
  const all = entries.value;
  const rows = useRowWindow(all.map(findHeight));
  useEndOfList(rows, all.length, loadMore);
  const active = useSignal("");
  const context = useSignal<{ id: string; place: MenuPlace } | null>(null);
  useListKeys(rows);
  const asked = context.value && sessions.value.get(context.value.id);
  const onContextMenu = (event: MouseEvent, id: string): void => {
    if (event.shiftKey) return;
    event.preventDefault();
    const { clientX: x, clientY: y } = event;
    context.value = { id, place: { left: x, right: x, top: y, bottom: y } };
  };
  return (
    <div class="list" ref={rows.box} aria-busy={!areSessionsLoaded.value}>
      {all.length === 0 && <NoSessions />}
      <div class="list-all" style={{ height: `${rows.tops.at(-1) ?? 0}px` }}>
        {all.slice(rows.first, rows.end).map((entry, index) => (
          <div
            key={entry.key}
            class="list-item"
            style={{ top: `${rows.tops[rows.first + index]}px`, height: `${findRowHeight(rows, rows.first + index)}px` }}
            onPointerEnter={() => (active.value = entry.key)}
            onFocusCapture={() => (active.value = entry.key)}
            onContextMenu={(event) => entry.kind === "row" && onContextMenu(event, entry.session.id)}
          >
            <ListEntry entry={entry} isActive={active.value === entry.key} />
          </div>
        ))}
      </div>
      {asked && context.value && (
        <MenuList
          label={`Actions for ${asked.name}`}
          items={listSessionActions(asked, isPhone.value ? "dialog" : "list")}
          place={context.value.place}
          onClose={() => (context.value = null)}
        />
      )}
    </div>
  );
}

function findRowHeight(rows: RowWindow, index: number): number {
  return (rows.tops[index + 1] ?? 0) - (rows.tops[index] ?? 0);
}

function ListEntry({ entry, isActive }: { entry: Entry; isActive: boolean }) {
  switch (entry.kind) {
    case "head":
      return <h2>{entry.label}</h2>;
    case "more":
      return (
        <button
          type="button"
          class="row more-helpers"
          onClick={() => (unfolded.value = new Set(unfolded.value).add(entry.parent))}
        >
          <Icon name="down" class="sm" />
          <span>{entry.count === 1 ? "1 more helper" : `${entry.count} more helpers`}</span>
        </button>
      );
    case "row":
      return (
        <SessionRow
          session={entry.session}
          isCurrent={entry.session.id === currentId.value}
          isKid={entry.isKid}
          isAfterKid={entry.isAfterKid}
          isOld={entry.isOld}
          isActive={isActive}
          usualAgent={usualAgent.value}
        />
      );
  }
}

function NoSessions() {
  if (!areSessionsLoaded.value || hasOlder.value) return null;
  if (!hasFilters.value) return <p class="list-note">No sessions yet</p>;
  return (
    <div class="list-note">
      <p>{filters.value.isArchived ? "No archived session" : "No session"} matches the filter.</p>
      <button type="button" class="b" onClick={() => setFilters(NO_FILTERS)}>
        Show all
      </button>
    </div>
  );
}

/** J and K move over the rows. The other keys act on the row that has the focus. */
function useListKeys(rows: RowWindow): void {
  const last = useRef("");
  const findFocused = (): string => {
    const link = document.activeElement?.closest<HTMLElement>("[data-session]");
    return link && rows.box.current?.contains(link) ? (link.dataset["session"] ?? "") : "";
  };
  const move = (step: number): void => {
    const all = entries.value;
    const start = all.findIndex((one) => one.key === (findFocused() || last.current || currentId.value));
    let index = start + step;
    while (all[index] && all[index]?.kind !== "row") index += step;
    const entry = all[index];
    if (!entry) return;
    last.current = entry.key;
    rows.showRow(index);
    requestAnimationFrame(() => rows.box.current?.querySelector<HTMLElement>(`[data-session="${CSS.escape(entry.key)}"]`)?.focus());
  };
  const act = (action: (session: SessionView) => unknown) => () => {
    const session = sessions.value.get(findFocused());
    if (session) action(session);
  };
  const isOnRow = (): boolean => canSend.value && findFocused() !== "";
  const where = "Lists";
  useKeys([
    { keys: "j", label: "Next", where, run: () => move(1) },
    { keys: "k", label: "Previous", where, run: () => move(-1) },
    { keys: "r", label: "Rename", where, run: act((one) => startRename(one, "list")), isActive: isOnRow },
    { keys: "b", label: "Pin", where, run: act(togglePin), isActive: isOnRow },
    { keys: "e", label: "Archive", where, run: act(toggleArchive), isActive: isOnRow },
  ]);
}
