/** The first page: what needs a person, or how to begin. On a phone the list of sessions is there instead. */

import { computed } from "@preact/signals";
import { canSend } from "../store/me.ts";
import { areSessionsLoaded, openQuestions, sessions } from "../store/sessions.ts";
import { plural } from "../ui/format.ts";
import { Icon } from "../ui/icon.tsx";
import { isPhone } from "./phone.ts";
import { findStanding } from "./session-status.ts";

const runningCount = computed(() => [...sessions.value.values()].filter((one) => findStanding(one) === "running").length);

export function HomePage({ missing = "" }: { missing?: string }) {
  if (missing) return <MissingPage path={missing} />;
  if (isPhone.value) return null;
  return (
    <main class="main center">
      {areSessionsLoaded.value && (sessions.value.size === 0 ? <FirstVisit /> : <Overview />)}
    </main>
  );
}

function Overview() {
  const asked = openQuestions.value.length;
  const running = runningCount.value;
  const runningText = running > 0 ? `${plural(running, "session is", "sessions are")} running.` : "No session is running.";
  return (
    <div class="empty">
      <Icon name={asked > 0 ? "ask" : "check"} />
      <h1>{asked > 0 ? `${plural(asked, "question")} for you` : "Nothing needs you"}</h1>
      <p>{runningText}</p>
      <div class="acts">
        {asked > 0 && (
          <a class="b pri" href="/inbox">
            Open the inbox
          </a>
        )}
        {canSend.value && (
          <a class="b" href="/new">
            New session <kbd>C</kbd>
          </a>
        )}
      </div>
    </div>
  );
}

function FirstVisit() {
  return (
    <div class="empty">
      <Icon name="logo" />
      <h1>Nothing has run here yet</h1>
      <p>Sessions of the terminal, the library and this page all come together here.</p>
      {canSend.value && (
        <a class="b pri" href="/new">
          New session <kbd>C</kbd>
        </a>
      )}
    </div>
  );
}

function MissingPage({ path }: { path: string }) {
  return (
    <main class="main center">
      <div class="empty">
        <Icon name="search" />
        <h1>There is no such page</h1>
        <p class="cut">{path}</p>
        <a class="b" href="/">
          All sessions
        </a>
      </div>
    </main>
  );
}
