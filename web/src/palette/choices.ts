/** What the palette offers for what was typed: commands, sessions, and passages. */

import type { SessionView } from "../generated/api.ts";
import { listSessionActions } from "../list/actions.ts";
import type { Found } from "../list/list-state.ts";
import { describeStatus, nameSession, nameWorkspace } from "../list/session-status.ts";
import { listKeys } from "../keys.ts";
import { buildPath, navigate, openSession, route } from "../router.ts";
import { canSend, logOut } from "../store/me.ts";
import { openQuestions, sessions, sortedSessions } from "../store/sessions.ts";
import { switchTheme, theme } from "../theme.ts";
import { formatAge, plural } from "../ui/format.ts";
import type { IconName } from "../ui/icon.tsx";
import { attempt } from "../ui/toasts.tsx";
import { listCommands, type Command } from "./commands.ts";
import { filterMatches } from "./fuzzy.ts";

export interface Choice {
  key: string;
  label: string;
  hint: string;
  icon: IconName;
  ink: string;
  keys: string;
  /** Marks of a passage are U+0002 and U+0003. */
  isPassage: boolean;
  run: () => void;
  /** The address, so that it can be opened in a new tab. */
  href: string;
}

export interface ChoiceGroup {
  label: string;
  choices: Choice[];
}

const HERE = "This session";
const EVERYWHERE = "Everywhere";
const MOST_SESSIONS = 8;
const MOST_HERE = 12;
/** Keys that are offered as commands too. Answers to questions are not: no slip may allow anything. */
const OFFERED_KEYS = new Set(["Session", "Time"]);

export function listChoices(typed: string, passages: readonly Found[], openKeys: () => void): ChoiceGroup[] {
  const here = filterMatches(listHere(), typed, (one) => `${one.label} ${one.hint ?? ""}`);
  const everywhere = filterMatches(listEverywhere(openKeys), typed, (one) => `${one.label} ${one.hint ?? ""}`);
  const groups: ChoiceGroup[] = [
    { label: HERE, choices: here.slice(0, MOST_HERE).map(fromCommand) },
    { label: EVERYWHERE, choices: everywhere.map(fromCommand) },
    { label: "Sessions", choices: findSessions(typed).map(fromSession) },
    { label: "In what was said", choices: passages.map(fromPassage) },
  ];
  return groups.filter((group) => group.choices.length > 0);
}

/** Commands of what is on the screen, then actions of the session. */
function listHere(): Command[] {
  const added = listCommands().filter((one) => (one.group ?? HERE) === HERE);
  const to = route.value;
  const session = to.page === "session" ? sessions.value.get(to.id) : undefined;
  const actions: Command[] = session ? listSessionActions(session, "dialog").filter((one) => !one.isDisabled).map(toCommand) : [];
  const names = new Set([...added, ...actions].map((one) => one.label));
  const keys = listKeys()
    .filter((one) => OFFERED_KEYS.has(one.where) && (one.isActive?.() ?? true) && !names.has(one.label))
    .map((one) => ({ label: one.label, keys: one.keys, run: () => one.run(new KeyboardEvent("keydown")) }));
  return [...added, ...keys, ...actions];
}

function toCommand({ label, icon, run }: { label: string; icon?: IconName; run: () => void }): Command {
  return icon ? { label, icon, run } : { label, run };
}

function listEverywhere(openKeys: () => void): Command[] {
  const asked = openQuestions.value.length;
  const base: Command[] = [
    { label: "Inbox", icon: "inbox", keys: "g i", hint: asked ? plural(asked, "question") : "", run: () => navigate({ page: "inbox", question: "" }) },
    { label: "All sessions", icon: "plan", keys: "g l", run: () => navigate({ page: "home" }) },
    { label: "Settings", icon: "sliders", run: () => navigate({ page: "settings", section: "" }) },
    { label: "Switch the theme", icon: "moon", hint: `now: ${theme.value}`, run: switchTheme },
    { label: "Keys", icon: "help", keys: "?", run: openKeys },
    { label: "Log out", icon: "out", run: () => void attempt(logOut) },
  ];
  if (canSend.value) base.unshift({ label: "New session", icon: "plus", keys: "c", run: () => navigate({ page: "new" }) });
  return [...listCommands().filter((one) => one.group !== undefined && one.group !== HERE), ...base];
}

/** Without text, the sessions that changed last. */
function findSessions(typed: string): SessionView[] {
  const current = route.value.page === "session" ? route.value.id : "";
  const others = sortedSessions.value.filter((one) => one.id !== current && (typed !== "" || !one.archived));
  return filterMatches(others, typed, nameSession).slice(0, MOST_SESSIONS);
}

function fromCommand(command: Command): Choice {
  const { label, hint = "", icon = "chev", keys = "", run } = command;
  return { key: `command ${label}`, label, hint, icon, ink: "", keys, run, isPassage: false, href: "" };
}

function fromSession(session: SessionView): Choice {
  const { icon, ink, word } = describeStatus(session);
  const hint = [word, nameWorkspace(session.workspace), formatAge(session.updated_at, Date.now() / 1000)].filter(Boolean).join(" · ");
  const href = buildPath({ page: "session", id: session.id, tab: "conversation", at: null });
  const base = { key: `session ${session.id}`, label: nameSession(session), keys: "", isPassage: false };
  return { ...base, hint, icon, ink, href, run: () => openSession(session.id) };
}

function fromPassage(found: Found): Choice {
  const href = buildPath({ page: "session", id: found.id, tab: "conversation", at: found.seq });
  const base = { key: `passage ${found.id} ${found.seq}`, label: found.snippet, hint: found.name, keys: "", isPassage: true };
  return { ...base, icon: "search", ink: "", href, run: () => openSession(found.id, found.seq) };
}
