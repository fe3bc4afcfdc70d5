/** The left side of the page: the search, the inbox and the sessions. On a phone it is the home page. */

import { useEffect, useRef } from "preact/hooks";
import { useSignal } from "@preact/signals";
import { useKeys } from "../keys.ts";
import { navigate, route } from "../router.ts";
import { SettingsSide } from "../settings/settings-side.tsx";
import { openKeys, openPalette } from "../palette/palette.tsx";
import { canSend } from "../store/me.ts";
import { openQuestions } from "../store/sessions.ts";
import { switchTheme, theme } from "../theme.ts";
import { plural } from "../ui/format.ts";
import { Icon } from "../ui/icon.tsx";
import { FilterMenu } from "./filter-menu.tsx";
import { FoundList, openFirstFound } from "./found-list.tsx";
import { followQuery, query } from "./list-state.ts";
import { isPhone } from "./phone.ts";
import { PhoneHead } from "./phone-head.tsx";
import { SessionList } from "./session-list.tsx";

export function Side() {
  useEffect(followQuery, []);
  const { page } = route.value;
  if (isPhone.value) return page === "home" ? <PhoneHome /> : null;
  if (page === "settings") return <SettingsSide />;
  return (
    <nav class="side" aria-label="Sessions">
      <div class="side-h">
        <a class="logo" href="/">
          <Icon name="logo" />
          treadle
        </a>
        <span class="sp" />
        <FilterMenu />
        {canSend.value && (
          <a class="b bare ico" href="/new" aria-label="New session" title="New session (C)">
            <Icon name="plus" />
          </a>
        )}
      </div>
      <div class="nav">
        <SearchField />
      </div>
      <InboxLink />
      {query.value.trim() ? <FoundList /> : <SessionList />}
      <SideFoot />
    </nav>
  );
}

function PhoneHome() {
  const isSearching = useSignal(query.value !== "");
  return (
    <main class="side" aria-label="Sessions">
      <PhoneHead isSearching={isSearching.value} onSearch={() => (isSearching.value = true)} />
      {isSearching.value && (
        <div class="nav phone-search">
          <SearchField isFocused />
          <button type="button" class="b bare" onClick={() => ((query.value = ""), (isSearching.value = false))}>
            Cancel
          </button>
        </div>
      )}
      {query.value.trim() ? <FoundList /> : <SessionList />}
    </main>
  );
}

function SearchField({ isFocused = false }: { isFocused?: boolean }) {
  const field = useRef<HTMLInputElement>(null);
  useEffect(() => void (isFocused && field.current?.focus()), [isFocused]);
  useKeys([{ keys: "/", label: "Search sessions", where: "Everywhere", run: () => field.current?.select() }]);
  const onKeyDown = (event: KeyboardEvent): void => {
    if (event.key === "Escape") {
      if (query.value === "") field.current?.blur();
      query.value = "";
    } else if (event.key === "Enter") openFirstFound();
    else if (event.key === "ArrowDown") document.querySelector<HTMLElement>(".found a.row")?.focus();
    else return;
    event.preventDefault();
    event.stopPropagation();
  };
  return (
    <div class="field" role="search">
      <Icon name="search" class="sm" />
      <input
        ref={field}
        id="search-sessions"
        type="text"
        enterkeyhint="search"
        placeholder="Search sessions"
        aria-label="Search sessions"
        autocomplete="off"
        spellcheck={false}
        value={query.value}
        onInput={(event) => (query.value = event.currentTarget.value)}
        onKeyDown={onKeyDown}
      />
      {query.value ? (
        <button type="button" class="clear" aria-label="Clear the search" onClick={() => ((query.value = ""), field.current?.focus())}>
          <Icon name="x" class="sm" />
        </button>
      ) : (
        <kbd>/</kbd>
      )}
    </div>
  );
}

function InboxLink() {
  const count = openQuestions.value.length;
  return (
    <div class="nav">
      <a href="/inbox" {...(route.value.page === "inbox" ? { "aria-current": "page" } : {})}>
        <Icon name="inbox" />
        Inbox
        <span class="sp" />
        {count > 0 && (
          <span class="count">
            {count}
            <span class="sr"> {plural(count, "question").replace(/^\d+ /, "")}</span>
          </span>
        )}
      </a>
    </div>
  );
}

function SideFoot() {
  const label = `Theme: ${theme.value}`;
  return (
    <div class="side-f">
      <button type="button" class="b bare" onClick={() => navigate({ page: "settings", section: "" })}>
        <Icon name="sliders" />
        Settings
      </button>
      <span class="sp" />
      <button type="button" class="b bare ico" title="Commands (Ctrl K)" aria-label="Commands" onClick={openPalette}>
        <Icon name="term" />
      </button>
      <button type="button" class="b bare ico" title={label} aria-label={label} onClick={switchTheme}>
        <Icon name="moon" />
      </button>
      <button type="button" class="b bare ico" title="Keys (?)" aria-label="Keys" onClick={openKeys}>
        <kbd>?</kbd>
      </button>
    </div>
  );
}
