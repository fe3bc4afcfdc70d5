/** One line at the top of the page when the server cannot be reached, or when the page is catching up. */

import { useSignal, useSignalEffect } from "@preact/signals";
import { connection, lastSeen } from "../store/connection.ts";
import { login } from "../store/login.ts";
import { loadMe, startError } from "../store/me.ts";
import { openedSession } from "../store/open-session.ts";
import { formatTime } from "../ui/format.ts";
import { Icon } from "../ui/icon.tsx";

/** A break that is shorter is not worth a banner, in milliseconds. */
const PATIENCE = 700;

export function StatusBanner() {
  if (login.value === "unknown") return startError.value ? <StartError /> : null;
  return <ConnectionBanner />;
}

/** The server did not answer at the start, so there is nothing to show yet. */
function StartError() {
  return (
    <main class="start-error empty">
      <Icon name="off" />
      <h1>No connection to the server</h1>
      <p>{startError.value} Runs go on without this page.</p>
      <button type="button" class="b" onClick={() => void loadMe()}>
        Try again
      </button>
    </main>
  );
}

type Trouble = "" | "offline" | "behind";

function findTrouble(): Trouble {
  if (connection.value === "offline") return "offline";
  const session = openedSession.value;
  const isBehind = session !== null && session.loading.value === "ready" && !session.isConnected.value;
  return isBehind && session.error.value === "" ? "behind" : "";
}

function ConnectionBanner() {
  const shown = useSignal<Trouble>("");
  useSignalEffect(() => {
    const trouble = findTrouble();
    if (!trouble) {
      shown.value = "";
      return;
    }
    const timer = setTimeout(() => (shown.value = trouble), PATIENCE);
    return () => clearTimeout(timer);
  });
  if (shown.value === "") return <div role="status" class="sr" />;
  if (shown.value === "behind") {
    return (
      <div class="ban" role="status">
        <Icon name="run" />
        <span class="ban-text">
          <b class="w5">Connecting to this session again.</b> <span class="m2">What is shown is as last seen.</span>
        </span>
      </div>
    );
  }
  return (
    <div class="ban" role="status">
      <Icon name="off" />
      <span class="ban-text">
        <b class="w5">No connection to the server.</b>{" "}
        <span class="m2">
          The run goes on without this page. Last seen {formatTime(lastSeen.value / 1000, { seconds: true })}.
        </span>
      </span>
      <button type="button" class="b" onClick={tryNow}>
        Try now
      </button>
    </div>
  );
}

/** The streams connect again when the browser says that it is online. */
function tryNow(): void {
  dispatchEvent(new Event("online"));
}
