/** Models: whether each can be used or why not, loading and unloading, with progress as it happens. */

import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { api } from "../api.ts";
import { openStream } from "../event-stream.ts";
import type { ConfigView, ModelList, ModelView } from "../generated/api.ts";
import { canSend } from "../store/me.ts";
import { formatCount } from "../ui/format.ts";
import { Icon } from "../ui/icon.tsx";
import { attempt } from "../ui/toasts.tsx";
import { Line, Lines, Note, Section, useLoaded } from "./section.tsx";

export function ModelsSection({ config }: { config: ConfigView | null }) {
  const { data, error, reload, setData } = useLoaded<ModelList>("/v1/models");
  const { isChecking, check } = useCheck(setData);
  const changes = useModelChanges();
  const [isAdding, setAdding] = useState(false);
  const listed = (data?.data ?? []).filter((one) => !one.id.startsWith("agent:"));
  const known = new Set(listed.map((one) => one.id));
  const models = [...listed, ...[...changes.values()].filter((one) => !known.has(one.id))];
  return (
    <Section
      id="models"
      title="Models"
      error={error}
      onRetry={reload}
      isLoading={data === null}
      tools={
        <>
          <button type="button" class="b bare" disabled={isChecking} onClick={check}>
            {isChecking ? "Checking" : "Check again"}
          </button>
          {canSend.value && (
            <button type="button" class="b bare" aria-expanded={isAdding} onClick={() => setAdding(!isAdding)}>
              Load a model
            </button>
          )}
        </>
      }
    >
      {isAdding && <LoadForm onDone={() => setAdding(false)} />}
      {data && models.length === 0 && <Note>This server has no model. Load one, or name one in its settings.</Note>}
      <Lines items={models} draw={(one) => <ModelLine key={one.id} model={merge(one, changes.get(one.id))} isUsual={one.id === config?.model} />} />
    </Section>
  );
}

/** The server connects to every provider, which may take seconds: what it finds replaces the list that is there. */
function useCheck(onFound: (found: ModelList) => void): { isChecking: boolean; check: () => void } {
  const [isChecking, setChecking] = useState(false);
  const check = useCallback(() => {
    setChecking(true);
    void attempt(async () => onFound(await api.get<ModelList>("/v1/models", { check: true }))).finally(() => setChecking(false));
  }, []);
  useEffect(check, []);
  return { isChecking, check };
}

/** The stream sends every model at first and then each change, without what was found out about reaching it. */
function useModelChanges(): ReadonlyMap<string, ModelView> {
  const [changes, setChanges] = useState<ReadonlyMap<string, ModelView>>(new Map());
  useEffect(
    () =>
      openStream({
        url: () => "/v1/models/stream",
        onEvents: (events) =>
          setChanges((before) => {
            const after = new Map(before);
            for (const { data } of events) {
              if (!data) continue;
              const { data: model } = JSON.parse(data) as { data: ModelView };
              after.set(model.id, model);
            }
            return after;
          }),
        onRefused: () => undefined,
      }),
    [],
  );
  return changes;
}

function merge(model: ModelView, change: ModelView | undefined): ModelView {
  return change ? { ...model, state: change.state, loaded: change.loaded, progress: change.progress, error: change.error } : model;
}

function ModelLine({ model, isUsual }: { model: ModelView; isUsual: boolean }) {
  const name = (
    <>
      <b class="w5">{model.id}</b> {isUsual && <span class="m3 t12">default</span>}
    </>
  );
  const isLoaded = model.state === "loaded" && model.loaded;
  const act = (verb: "load" | "unload"): void => void attempt(() => api.post(`/v1/models/${verb}`, { model: model.id }));
  const actions = canSend.value && (
    <button type="button" class="b bare" onClick={() => act(isLoaded || model.state === "loading" ? "unload" : "load")}>
      {model.state === "loading" ? "Cancel" : isLoaded ? "Unload" : model.state === "failed" ? "Try again" : "Load"}
    </button>
  );
  return (
    <Line icon="chip" name={name} actions={actions}>
      <ModelState model={model} />
    </Line>
  );
}

function ModelState({ model }: { model: ModelView }) {
  if (model.state === "loading") {
    const { fraction = null, message = "" } = model.progress ?? {};
    return (
      <>
        <span class="tag acc">
          <Icon name="run" class="sm" />
          Loading{message && `, ${message}`}
        </span>
        {fraction !== null && (
          <div class="bar2" role="progressbar" aria-label={`Loading ${model.id}`} aria-valuenow={Math.round(fraction * 100)}>
            <i style={{ width: `${fraction * 100}%` }} />
          </div>
        )}
      </>
    );
  }
  const why = model.error || (model.reachable ? "" : model.why);
  if (why) {
    return (
      <>
        <span class="tag bad">
          <Icon name="fail" class="sm" />
          Not usable
        </span>{" "}
        {why}
      </>
    );
  }
  if (!model.loaded) return <>Not loaded</>;
  return (
    <>
      <span class="tag good">
        <Icon name="check" class="sm" />
        Ready
      </span>{" "}
      {model.window !== null && `${formatCount(model.window)} window`}
    </>
  );
}

function LoadForm({ onDone }: { onDone: () => void }) {
  const [name, setName] = useState("");
  const field = useRef<HTMLInputElement>(null);
  useEffect(() => field.current?.focus(), []);
  const load = async (event: Event): Promise<void> => {
    event.preventDefault();
    if (await attempt(() => api.post("/v1/models/load", { model: name.trim() }))) onDone();
  };
  return (
    <form class="set-form" onSubmit={(event) => void load(event)}>
      <div class="field">
        <input
          class="mono"
          aria-label="Name of the model"
          placeholder="ollama:qwen3, or local:file.gguf"
          ref={field}
          value={name}
          spellcheck={false}
          onInput={(event) => setName(event.currentTarget.value)}
        />
      </div>
      <button type="submit" class={name.trim() ? "b pri" : "b"} disabled={name.trim() === ""}>
        Load
      </button>
    </form>
  );
}
