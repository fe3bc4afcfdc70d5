/** The session to create: what the person chose so far, and what the server offers. */

import { computed, signal } from "@preact/signals";
import { api, sessionPath } from "../api.ts";
import { MOST_FILES } from "../composer/completion.ts";
import { clearDraft, draftOf, NEW } from "../composer/drafts.ts";
import { send } from "../composer/outbox.ts";
import type { AgentView, ConfigView, FoundFiles, LimitsBody, ModelList, ModelView, SessionView } from "../generated/api.ts";
import { openSession } from "../router.ts";
import { putSession, sortedSessions } from "../store/sessions.ts";
import type { Access } from "../view.ts";

export interface Settings {
  /** Empty values leave the choice to the server. */
  agent: string;
  model: string;
  workspace: string;
  access: Access | null;
  web: boolean | null;
  limits: LimitsBody;
}

const EMPTY: Settings = { agent: "", model: "", workspace: "", access: null, web: null, limits: {} };

export const settings = signal<Settings>(EMPTY);

export function changeSettings(change: Partial<Settings>): void {
  settings.value = { ...settings.value, ...change };
}

export const agents = signal<AgentView[]>([]);
export const models = signal<ModelView[]>([]);
export const config = signal<ConfigView | null>(null);

/** Load what can be chosen. A part that fails leaves its choice to the server. */
export async function loadChoices(): Promise<void> {
  await Promise.allSettled([
    api.get<AgentView[]>("/v1/agents").then((found) => (agents.value = found)),
    api.get<ModelList>("/v1/models").then((found) => (models.value = found.data.filter((one) => !one.id.startsWith("agent:")))),
    api.get<ConfigView>("/v1/config").then((found) => (config.value = found)),
  ]);
}

/** The agent that a session gets. Without a choice it is the server's default, which comes first. */
export const chosenAgent = computed(() => agents.value.find((one) => one.name === settings.value.agent) ?? agents.value[0]);

const MOST_FOLDERS = 10;

/** Folders that the server allows and that were used before, the most recent first. */
export const folders = computed(() => {
  const used = sortedSessions.value.map((one) => one.workspace).filter(Boolean);
  return [...new Set([...used.slice(0, 200), ...(config.value?.workspaces ?? [])])].slice(0, MOST_FOLDERS);
});

const TIERS: readonly Access[] = ["plan", "read-only", "sandbox", "full"];

export const ACCESS_WORDS: Record<Access, { label: string; about: string }> = {
  plan: { label: "Plans only", about: "It reads and makes a plan. Nothing changes before you accept the plan." },
  "read-only": { label: "Asks before changes", about: "It reads freely, and asks before each change." },
  sandbox: {
    label: "Asks only if dangerous",
    about: "Commands run in the sandbox and may write only in the workspace. It asks before dangerous steps.",
  },
  full: { label: "Full access", about: "Commands run with all rights of the server's user. It asks before dangerous steps." },
};

/** The tiers that the server allows, the narrowest first. */
export const allowedAccess = computed(() => {
  const widest = TIERS.indexOf((config.value?.access ?? "sandbox") as Access);
  return TIERS.slice(0, widest + 1);
});

export const chosenAccess = computed<Access>(() => settings.value.access ?? allowedAccess.value.at(-1) ?? "sandbox");

/** Create the session, send its first message and open it. */
export async function createSession(): Promise<void> {
  const { agent, model, workspace, access, web, limits } = settings.value;
  const body = { agent, model, workspace, access, web, limits: hasLimits(limits) ? limits : null };
  const created = await api.post<SessionView>("/v1/sessions", body);
  putSession(created);
  send({ sessionId: created.id, ...draftOf(NEW).peek(), mode: "queue", command: "" });
  clearDraft(NEW);
  settings.value = { ...EMPTY, agent, model, workspace, access };
  openSession(created.id);
}

/** Find files of the folder that was chosen. The server lists them for sessions, so this needs an earlier one there. */
export async function findFiles(typed: string): Promise<string[]> {
  const folder = settings.value.workspace || (config.value?.workspaces[0] ?? "");
  const earlier = sortedSessions.value.find((one) => one.workspace === folder);
  if (!earlier) return [];
  return (await api.get<FoundFiles>(sessionPath(earlier.id, "/files"), { q: typed, limit: MOST_FILES })).files;
}

export function hasLimits(limits: LimitsBody): boolean {
  return Object.values(limits).some((value) => typeof value === "number");
}
