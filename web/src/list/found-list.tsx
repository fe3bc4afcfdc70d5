/** What a search found: sessions by their names, and passages of what was said. */

import { useRef } from "preact/hooks";
import { openSession, buildPath } from "../router.ts";
import { sessions } from "../store/sessions.ts";
import { Icon } from "../ui/icon.tsx";
import { currentId, query, searchResult, type Found } from "./list-state.ts";
import { Marked } from "./marked.tsx";
import { SessionRow } from "./session-row.tsx";

export function FoundList() {
  const box = useRef<HTMLDivElement>(null);
  const result = searchResult.value;
  if (!result) return <div class="list" aria-busy="true" />;
  const move = (event: KeyboardEvent): void => {
    const step = event.key === "ArrowDown" || event.key === "j" ? 1 : event.key === "ArrowUp" || event.key === "k" ? -1 : 0;
    if (step === 0) return;
    event.preventDefault();
    event.stopPropagation();
    const links = [...(box.current?.querySelectorAll<HTMLElement>("a.row") ?? [])];
    const next = links.indexOf(document.activeElement as HTMLElement) + step;
    if (next < 0) document.getElementById("search-sessions")?.focus();
    else links[next]?.focus();
  };
  return (
    <div class="list found" ref={box} onKeyDown={move}>
      <p class="sr" role="status">
        {result.found.length === 0 ? "Nothing found" : `${result.found.length} found`}
      </p>
      {result.error && (
        <p class="list-note bad">
          <Icon name="fail" class="sm" /> {result.error}
        </p>
      )}
      {result.found.length === 0 && !result.error && <NothingFound text={result.query} />}
      {result.found.map((one) => (
        <FoundRow key={`${one.id} ${one.seq}`} found={one} />
      ))}
    </div>
  );
}

function FoundRow({ found }: { found: Found }) {
  const session = sessions.value.get(found.id);
  const hit = { seq: found.seq, snippet: found.snippet };
  if (found.isMore) return <MoreFound found={found} />;
  if (session) return <SessionRow session={session} isCurrent={session.id === currentId.value} hit={hit} isOld />;
  // An old session that the list has not loaded yet.
  return (
    <a class="row old" href={buildPath({ page: "session", id: found.id, tab: "conversation", at: found.seq })}>
      <Icon name="search" class="m3" />
      <span class="t cut">{found.name}</span>
      <span class="hit">
        <Marked text={found.snippet} />
      </span>
    </a>
  );
}

/** A further passage of the session in the row above. */
function MoreFound({ found }: { found: Found }) {
  return (
    <a class="row more-hit" href={buildPath({ page: "session", id: found.id, tab: "conversation", at: found.seq })}>
      <span class="hit">
        <Marked text={found.snippet} />
      </span>
    </a>
  );
}

function NothingFound({ text }: { text: string }) {
  return (
    <div class="empty">
      <Icon name="search" />
      <h2>No session says “{text}”</h2>
      <p>Names and all that was said were searched, in archived sessions too.</p>
    </div>
  );
}

/** Open the first thing that was found. */
export function openFirstFound(): void {
  const first = searchResult.value?.found[0];
  if (!first) return;
  openSession(first.id, first.seq);
  query.value = "";
}
