/** Log in with a token. Links from `treadle serve` log in by themselves. */

import { useRef, useState } from "preact/hooks";
import { ApiError } from "../api.ts";
import { isLinkUsedUp } from "../store/login.ts";
import { logIn, me } from "../store/me.ts";
import { Icon } from "../ui/icon.tsx";
import { useTitle } from "../ui/title.ts";

export function LoginPage() {
  const [token, setToken] = useState("");
  const [error, setError] = useState("");
  const [isSending, setSending] = useState(false);
  const field = useRef<HTMLInputElement>(null);
  useTitle("Log in");
  const send = async (event: Event): Promise<void> => {
    event.preventDefault();
    setSending(true);
    setError("");
    try {
      await logIn(token.trim());
    } catch (problem) {
      setError(describeProblem(problem));
      field.current?.focus();
    } finally {
      setSending(false);
    }
  };
  return (
    <div class="login-scroll">
      <main class="login">
        <div class="logo">
          <Icon name="logo" />
          treadle
        </div>
        <h1>{me.value ? "You were logged out" : "Log in"}</h1>
        <Reason />
        <form class="login-form" onSubmit={(event) => void send(event)}>
          <label class="w5" for="token">
            {isLinkUsedUp.value ? "Paste a token" : "Or paste a token"}
          </label>
          <input type="text" name="username" autocomplete="username" value="treadle" readOnly hidden />
          <div class="field">
            <Icon name="key" class="sm" />
            <input
              ref={field}
              id="token"
              class="mono"
              type="password"
              autocomplete="current-password"
              autocapitalize="none"
              spellcheck={false}
              required
              value={token}
              aria-invalid={error !== ""}
              aria-describedby={error ? "login-error" : undefined}
              onInput={(event) => setToken(event.currentTarget.value)}
            />
          </div>
          {error && (
            <p class="login-error bad" id="login-error" role="alert">
              <Icon name="fail" class="sm" />
              <span>{error}</span>
            </p>
          )}
          <button type="submit" class={token.trim() ? "b pri" : "b"} disabled={isSending || token.trim() === ""}>
            {isSending ? "Logging in" : "Log in"}
          </button>
        </form>
        <LoginWays />
        <p class="m3 t12">{location.host} · nothing leaves this server</p>
      </main>
    </div>
  );
}

/** Why there is something to do here, and the usual way. */
function Reason() {
  if (isLinkUsedUp.value) {
    return (
      <p class="login-error bad" role="alert">
        <Icon name="fail" class="sm" />
        <span>This link was used before, or is older than ten minutes. Get a new one, or log in with a token.</span>
      </p>
    );
  }
  return (
    <p class="m2">
      {me.value && "Log in to go on where you were. "}
      Open the link that <code>treadle serve</code> printed. It works once, for ten minutes.
    </p>
  );
}

function LoginWays() {
  return (
    <div class="alt">
      <Icon name="term" />
      <div>
        <b class="w5">On the machine of the server</b>
        <p class="m2">
          <code>treadle serve</code> prints a new link at each start. With <code>--open</code> it opens this page, logged in.
        </p>
      </div>
      <Icon name="phone" />
      <div>
        <b class="w5">On a phone or another browser</b>
        <p class="m2">Scan the code in the terminal, or make a link where you are logged in: Settings, This device.</p>
      </div>
    </div>
  );
}

function describeProblem(problem: unknown): string {
  if (!(problem instanceof ApiError)) return String(problem);
  if (problem.status === 401) return "The server has no such token. Its file of tokens is printed when it starts.";
  if (problem.status === 429) return "Too many wrong tokens. Wait a minute, then try again.";
  return problem.message;
}
