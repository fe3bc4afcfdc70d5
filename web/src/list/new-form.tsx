/** The settings of a new session, one line each. */

import { useEffect, useRef, useState } from "preact/hooks";
import type { LimitsBody, ModelView } from "../generated/api.ts";
import { Choice } from "../ui/choice.tsx";
import { formatCost, formatCount, plural } from "../ui/format.ts";
import { Menu, type MenuItem } from "../ui/menu.tsx";
import {
  ACCESS_WORDS, agents, allowedAccess, changeSettings, chosenAccess, chosenAgent, config, folders, hasLimits, models,
  settings,
} from "./new-session.ts";
import { nameWorkspace } from "./session-status.ts";

export function NewForm() {
  const access = allowedAccess.value.map((value) => ({ value, label: ACCESS_WORDS[value].label }));
  return (
    <>
      <div class="form">
        <WorkspaceLine />
        <AgentLine />
        <ModelLine />
        {access.length > 1 && (
          <div class="form-wide">
            <span class="lb">Access</span>
            <Choice label="Access" value={chosenAccess.value} options={access} onChange={(value) => changeSettings({ access: value })} />
          </div>
        )}
        {config.value?.web && (
          <div class="form-wide">
            <span class="lb">Web</span>
            <Choice
              label="Web"
              value={settings.value.web === false ? "no" : "yes"}
              options={[{ value: "yes", label: "May search and read" }, { value: "no", label: "Off" }]}
              onChange={(value) => changeSettings({ web: value === "yes" ? null : false })}
            />
          </div>
        )}
        <LimitsLine />
      </div>
      <p class="m3 t12 form-note">{ACCESS_WORDS[chosenAccess.value].about}</p>
    </>
  );
}

function WorkspaceLine() {
  const [isTyping, setTyping] = useState(false);
  const field = useRef<HTMLInputElement>(null);
  useEffect(() => void (isTyping && field.current?.focus()), [isTyping]);
  const chosen = settings.value.workspace || (config.value?.workspaces[0] ?? "");
  const items: MenuItem[] = folders.value.map((path) => ({
    label: nameWorkspace(path) || path,
    hint: path,
    isChecked: path === chosen,
    run: () => changeSettings({ workspace: path }),
  }));
  items.push({ label: "Another folder…", icon: "file", run: () => setTyping(true) });
  return (
    <div>
      <label class="lb" for="new-workspace">Workspace</label>
      {isTyping ? (
        <div class="field">
          <input
            id="new-workspace"
            class="mono"
            ref={field}
            value={chosen}
            spellcheck={false}
            onInput={(event) => changeSettings({ workspace: event.currentTarget.value })}
          />
        </div>
      ) : (
        <span class="cut" title={chosen}>
          {nameWorkspace(chosen) || "of the server"} <span class="m3">{chosen}</span>
        </span>
      )}
      {isTyping ? (
        <button type="button" class="b bare" onClick={() => setTyping(false)}>
          Done
        </button>
      ) : (
        <ChangeMenu label="Change the workspace" items={items} />
      )}
    </div>
  );
}

function AgentLine() {
  const agent = chosenAgent.value;
  const items: MenuItem[] = agents.value.map((one) => ({
    label: one.name,
    hint: one.description,
    isChecked: one.name === agent?.name,
    run: () => changeSettings({ agent: one.name }),
  }));
  return (
    <div>
      <span class="lb">Agent</span>
      <span class="cut">
        {agent?.name ?? "of the server"} <span class="m3">{agent?.description}</span>
      </span>
      {items.length > 1 && <ChangeMenu label="Change the agent" items={items} />}
    </div>
  );
}

function ModelLine() {
  const { model } = settings.value;
  const own = chosenAgent.value?.model ?? "";
  const shown = model || own || "of the agent";
  const state = models.value.find((one) => one.id === shown);
  const items: MenuItem[] = [
    { label: own || "The agent's model", hint: "from the agent", isChecked: model === "", run: () => changeSettings({ model: "" }) },
    ...models.value
      .filter((one) => one.id !== own)
      .map((one) => ({
        label: one.id,
        hint: describeModel(one),
        isChecked: one.id === model,
        run: () => changeSettings({ model: one.id }),
      })),
  ];
  return (
    <div>
      <span class="lb">Model</span>
      <span class="cut">
        {shown} <span class={state?.reachable === false ? "bad" : "m3"}>{state?.reachable === false ? state.why : model ? "" : "from the agent"}</span>
      </span>
      {items.length > 1 && <ChangeMenu label="Change the model" items={items} />}
    </div>
  );
}

function describeModel(model: ModelView): string {
  if (!model.reachable) return model.why || model.error || "cannot be reached";
  if (model.state === "loading") return model.progress?.message || "is loading";
  return model.window === null ? "" : `${formatCount(model.window)} window`;
}

function ChangeMenu({ label, items }: { label: string; items: MenuItem[] }) {
  return (
    <Menu label={label} items={items} class="b bare">
      <span aria-hidden="true">Change</span>
      <span class="sr">{label}</span>
    </Menu>
  );
}

const LIMITS: { name: keyof LimitsBody; label: string; unit: string; factor: number }[] = [
  { name: "cost", label: "Cost", unit: "$", factor: 1 },
  { name: "turns", label: "Turns", unit: "turns", factor: 1 },
  { name: "seconds", label: "Time", unit: "minutes", factor: 60 },
  { name: "tokens", label: "Tokens", unit: "tokens", factor: 1 },
];

function LimitsLine() {
  const [isOpen, setOpen] = useState(false);
  const { limits } = settings.value;
  const own = chosenAgent.value;
  const ofAgent = own ? `${plural(own.max_iterations, "turn")}, from the agent` : "of the agent";
  return (
    <>
      <div>
        <span class="lb">Limits</span>
        <span class="cut">{hasLimits(limits) ? describeLimits(limits) : <span class="m3">{ofAgent}</span>}</span>
        <button type="button" class="b bare" aria-expanded={isOpen} onClick={() => setOpen(!isOpen)}>
          {isOpen ? "Done" : "Change"}
        </button>
      </div>
      {isOpen && (
        <div class="limit-fields">
          {LIMITS.map(({ name, label, unit, factor }) => (
            <label key={name}>
              <span class="lb">{label}</span>
              <span class="field">
                <input
                  inputMode="decimal"
                  value={limits[name] ? String((limits[name] ?? 0) / factor) : ""}
                  placeholder={name === "turns" && own ? String(own.max_iterations) : "no limit"}
                  onChange={(event) => changeSettings({ limits: { ...limits, [name]: readLimit(event.currentTarget.value, factor, name) } })}
                />
                <span class="m3 t12">{unit}</span>
              </span>
            </label>
          ))}
        </div>
      )}
    </>
  );
}

/** A number above zero, or nothing. Only costs and times have fractions. */
function readLimit(text: string, factor: number, name: keyof LimitsBody): number | null {
  const value = Number(text.replace(",", ".").trim()) * factor;
  if (!Number.isFinite(value) || value <= 0) return null;
  return name === "turns" || name === "tokens" ? Math.max(1, Math.round(value)) : value;
}

function describeLimits({ cost, turns, seconds, tokens }: LimitsBody): string {
  const parts = [
    cost ? formatCost(cost) : "",
    turns ? plural(turns, "turn") : "",
    seconds ? `${Number((seconds / 60).toFixed(1))} min` : "",
    tokens ? `${formatCount(tokens)} tokens` : "",
  ];
  return parts.filter(Boolean).join(", ");
}
