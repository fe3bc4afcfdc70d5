/** Which model, agent and access a session has, as menus that change them. A phone has one menu for all. */

import { useEffect } from "preact/hooks";
import { api, sessionPath } from "../api.ts";
import type { SessionView } from "../generated/api.ts";
import { ACCESS_WORDS, agents, allowedAccess, config, loadChoices, models } from "../list/new-session.ts";
import { isPhone } from "../list/phone.ts";
import type { OpenSession } from "../store/open-session.ts";
import { putSession } from "../store/sessions.ts";
import { formatModel } from "../ui/format.ts";
import { Icon } from "../ui/icon.tsx";
import { Menu, type MenuItem } from "../ui/menu.tsx";
import { attempt } from "../ui/toasts.tsx";
import type { Access, View } from "../view.ts";

interface Setting {
  label: string;
  shown: string;
  items: MenuItem[];
}

export function SessionSettings({ session }: { session: OpenSession }) {
  useEffect(() => {
    if (config.peek() === null) void loadChoices();
  }, []);
  session.version.value;
  const { id, view } = session;
  const settings = [chooseModel(id, view), chooseAgent(id, view), chooseAccess(id, view)].filter((one) => one.items.length > 1);
  if (isPhone.value) return <OneMenu settings={settings} />;
  return (
    <>
      {settings.map(({ label, shown, items }) => (
        <Menu key={label} label={label} items={items} class="chip">
          <span class="sr">{label}: </span>
          {shown} <Icon name="down" class="sm" />
        </Menu>
      ))}
    </>
  );
}

function OneMenu({ settings }: { settings: Setting[] }) {
  if (settings.length === 0) return null;
  const items = settings.flatMap(({ label, items: own }) => own.map((item, at) => (at === 0 ? { ...item, heading: label } : item)));
  return (
    <Menu label="Model, agent and access" items={items}>
      <Icon name="sliders" />
      <span class="sr">Model, agent and access</span>
    </Menu>
  );
}

function chooseModel(id: string, view: View): Setting {
  const current = view.model || (agents.value.find((one) => one.name === view.agent)?.model ?? "");
  const items = models.value.map((one) => ({
    label: formatModel(one.id) || one.id,
    hint: one.reachable ? "" : one.why || one.error || "cannot be reached",
    isChecked: one.id === current,
    run: () => void change(id, { model: one.id }),
  }));
  return { label: "Model", shown: formatModel(current) || "Model", items };
}

function chooseAgent(id: string, view: View): Setting {
  const items = agents.value.map((one) => ({
    label: one.name,
    hint: one.description,
    isChecked: one.name === view.agent,
    run: () => void change(id, { agent: one.name }),
  }));
  return { label: "Agent", shown: view.agent, items };
}

function chooseAccess(id: string, view: View): Setting {
  const current: Access = view.access ?? config.value?.access ?? "sandbox";
  const items = allowedAccess.value.map((access) => ({
    label: ACCESS_WORDS[access].label,
    hint: ACCESS_WORDS[access].about,
    isChecked: access === current,
    run: () => void change(id, { access }),
  }));
  return { label: "Access", shown: ACCESS_WORDS[current].label, items: config.value ? items : [] };
}

async function change(id: string, body: { model?: string; agent?: string; access?: Access }): Promise<void> {
  await attempt(async () => putSession(await api.patch<SessionView>(sessionPath(id), body)));
}
