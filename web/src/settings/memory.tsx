/** What agents remember: search, add, edit and delete, with the session that it comes from. */

import { useEffect, useRef, useState } from "preact/hooks";
import { api } from "../api.ts";
import type { MemoryView } from "../generated/api.ts";
import { nameSession, nameWorkspace } from "../list/session-status.ts";
import { canSend } from "../store/me.ts";
import { sessions } from "../store/sessions.ts";
import { formatAge } from "../ui/format.ts";
import { Icon } from "../ui/icon.tsx";
import { attempt, showToast } from "../ui/toasts.tsx";
import { VisibleText } from "../ui/visible-text.tsx";
import { Line, List, Note, Section } from "./section.tsx";

const PAGE = 20;
const MOST_FOUND = 50;
const TYPING_PAUSE = 200;

interface Memories {
  items: MemoryView[];
  hasMore: boolean;
}

export function MemorySection() {
  const [query, setQuery] = useState("");
  const [found, setFound] = useState<Memories | null>(null);
  const [error, setError] = useState("");
  const [editing, setEditing] = useState<string | null>(null);
  const load = (offset: number): void => {
    loadMemories(query, offset).then(
      (page) => {
        setError("");
        setFound((before) => ({ items: offset ? [...(before?.items ?? []), ...page.items] : page.items, hasMore: page.hasMore }));
      },
      (problem: unknown) => setError(problem instanceof Error ? problem.message : String(problem)),
    );
  };
  useEffect(() => {
    const timer = setTimeout(() => load(0), query ? TYPING_PAUSE : 0);
    return () => clearTimeout(timer);
  }, [query]);
  const save = async (id: string, content: string): Promise<void> => {
    const text = content.trim();
    if (text === "") return;
    const path = `/v1/memory/${encodeURIComponent(id)}`;
    if (!(await attempt(() => (id ? api.patch(path, { content: text }) : api.post("/v1/memory", { content: text }))))) return;
    setEditing(null);
    load(0);
  };
  const remove = async (memory: MemoryView): Promise<void> => {
    if (!(await attempt(() => api.delete(`/v1/memory/${encodeURIComponent(memory.id)}`)))) return;
    load(0);
    const { content, kind, scope } = memory;
    const undo = (): void => void attempt(() => api.post("/v1/memory", { content, kind, scope })).then(() => load(0));
    showToast("The memory is deleted", { undo });
  };
  const tools = <MemoryTools query={query} onQuery={setQuery} onAdd={() => setEditing("")} />;
  return (
    <Section id="memory" title="Memory" tools={tools} error={error} onRetry={() => load(0)} isLoading={found === null}>
      {editing === "" && <MemoryForm text="" onSave={(text) => void save("", text)} onCancel={() => setEditing(null)} />}
      {found?.items.length === 0 && <Note>{query ? `No memory says “${query}”.` : "Nothing is remembered yet."}</Note>}
      {found !== null && found.items.length > 0 && (
        <List>
          {found.items.map((one) =>
            editing === one.id ? (
              <li key={one.id}>
                <MemoryForm text={one.content} onSave={(text) => void save(one.id, text)} onCancel={() => setEditing(null)} />
              </li>
            ) : (
              <MemoryLine key={one.id} memory={one} onEdit={() => setEditing(one.id)} onDelete={() => void remove(one)} />
            ),
          )}
        </List>
      )}
      {found?.hasMore && (
        <button type="button" class="b bare set-more" onClick={() => load(found.items.length)}>
          <Icon name="down" class="sm" /> Show more
        </button>
      )}
    </Section>
  );
}

async function loadMemories(query: string, offset: number): Promise<Memories> {
  if (query.trim()) {
    const items = await api.get<MemoryView[]>("/v1/memory/search", { q: query.trim(), k: MOST_FOUND });
    return { items, hasMore: false };
  }
  const items = await api.get<MemoryView[]>("/v1/memory", { limit: PAGE + 1, offset });
  return { items: items.slice(0, PAGE), hasMore: items.length > PAGE };
}

function MemoryTools({ query, onQuery, onAdd }: { query: string; onQuery: (text: string) => void; onAdd: () => void }) {
  return (
    <>
      <div class="field memory-search" role="search">
        <Icon name="search" class="sm" />
        <input
          type="search"
          aria-label="Search memory"
          placeholder="Search"
          value={query}
          spellcheck={false}
          onInput={(event) => onQuery(event.currentTarget.value)}
        />
      </div>
      {canSend.value && (
        <button type="button" class="b bare" onClick={onAdd}>
          Add
        </button>
      )}
    </>
  );
}

interface MemoryLineProps {
  memory: MemoryView;
  onEdit: () => void;
  onDelete: () => void;
}

function MemoryLine({ memory, onEdit, onDelete }: MemoryLineProps) {
  const session = sessions.value.get(memory.session_id);
  const age = formatAge(memory.created_at, Date.now() / 1000);
  const where = memory.scope ? `in ${nameWorkspace(memory.scope)}` : "everywhere";
  const actions = canSend.value && (
    <>
      <button type="button" class="b bare" onClick={onEdit}>
        Edit
      </button>
      <button type="button" class="b bare" onClick={onDelete}>
        Delete
      </button>
    </>
  );
  return (
    <Line icon="note" name={<VisibleText text={memory.content} />} actions={actions}>
      {memory.session_id ? (
        <a class="acc" href={`/s/${encodeURIComponent(memory.session_id)}`}>
          From {session ? `“${nameSession(session)}”` : "a session"}
        </a>
      ) : (
        "Told by a person"
      )}
      , {age} · {where}
      {memory.untrusted && " · others' text was read before"}
    </Line>
  );
}

interface MemoryFormProps {
  text: string;
  onSave: (text: string) => void;
  onCancel: () => void;
}

function MemoryForm({ text, onSave, onCancel }: MemoryFormProps) {
  const [typed, setTyped] = useState(text);
  const field = useRef<HTMLTextAreaElement>(null);
  useEffect(() => field.current?.focus(), []);
  return (
    <form class="set-form" onSubmit={(event) => (event.preventDefault(), onSave(typed))}>
      <textarea
        aria-label="The memory"
        placeholder="Such as: tests run with make test"
        ref={field}
        value={typed}
        onInput={(event) => setTyped(event.currentTarget.value)}
      />
      <button type="button" class="b" onClick={onCancel}>
        Cancel
      </button>
      <button type="submit" class={typed.trim() ? "b pri" : "b"} disabled={typed.trim() === ""}>
        Save
      </button>
    </form>
  );
}
