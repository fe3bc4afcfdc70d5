/** A long output: line numbers, search inside, and only the lines in sight are drawn. Pictures are shown. */

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import type { CallFinished } from "../generated/events.ts";
import { stripAnsi } from "../session/tool-text.ts";
import { artifactPath, keptArtifacts, loadArtifact } from "../store/artifacts.ts";
import type { OpenSession } from "../store/open-session.ts";
import { plural } from "../ui/format.ts";
import { Icon } from "../ui/icon.tsx";
import { VisibleText } from "../ui/visible-text.tsx";
import { findMatches, findPictureType, indexLines, lineAt, MOST_MATCHES, readLine, type TextLines } from "./long-text.ts";

interface LongOutputProps {
  sessionId: string;
  callId: string;
  /** The whole output, if it was too long for the log. */
  artifactId?: string | undefined;
  /** What the log has. */
  text: string;
  /** Take all the room of a pane. */
  fillsPane?: boolean;
}

export function LongOutput({ sessionId, callId, artifactId = "", text, fillsPane = false }: LongOutputProps) {
  const loaded = useArtifact(sessionId, artifactId);
  const shown = loaded.text ?? text;
  const lines = useMemo(() => indexLines(stripAnsi(shown)), [shown]);
  const search = useSearch(lines);
  if (loaded.picture) return <Picture url={loaded.picture} sessionId={sessionId} artifactId={artifactId} />;
  return (
    <section class={fillsPane ? "long whole" : "long"} aria-label="Output" id={`output-${callId}`}>
      <div class="long-h">
        <SearchField search={search} />
        <span class="sp" />
        <span class="m3 t12">
          {lines.isCut && "The first "}
          {plural(lines.starts.length, "line")}
        </span>
        {loaded.error && <span class="bad t12" role="alert">{loaded.error}</span>}
        {artifactId && loaded.text === null && !loaded.error && <span class="m3 t12">Loading…</span>}
        {artifactId && <DownloadLink sessionId={sessionId} artifactId={artifactId} />}
      </div>
      <Lines lines={lines} matches={search.matches} current={search.current} />
    </section>
  );
}

/** A long output on the right side of the Changes tab. */
export function ArtifactPane({ session, finished }: { session: OpenSession; finished: CallFinished }) {
  return (
    <>
      <header class="bar file-head">
        <code class="w5 cut">{finished.tool} output</code>
      </header>
      <LongOutput
        key={finished.call_id}
        sessionId={session.id}
        callId={finished.call_id}
        artifactId={finished.truncation?.artifact}
        text={finished.output ?? ""}
        fillsPane
      />
    </>
  );
}

function DownloadLink({ sessionId, artifactId }: { sessionId: string; artifactId: string }) {
  if (keptArtifacts.has(artifactId)) return null; // an exported file has no server to load it from
  return (
    <a class="b bare ico" href={artifactPath(sessionId, artifactId)} download={artifactId} aria-label="Download the whole output" title="Download the whole output">
      <Icon name="down" class="sm" />
    </a>
  );
}

function Picture({ url, sessionId, artifactId }: { url: string; sessionId: string; artifactId: string }) {
  return (
    <figure class="long-picture">
      <img src={url} alt="Picture that the call returned" />
      <figcaption>
        <DownloadLink sessionId={sessionId} artifactId={artifactId} />
      </figcaption>
    </figure>
  );
}

interface Loaded {
  text: string | null;
  picture: string;
  error: string;
}

const NOTHING: Loaded = { text: null, picture: "", error: "" };

function useArtifact(sessionId: string, artifactId: string): Loaded {
  const [loaded, setLoaded] = useState(NOTHING);
  useEffect(() => {
    if (!artifactId) return undefined;
    let isGone = false;
    let picture = "";
    const load = async (): Promise<Loaded> => {
      const data = await loadArtifact(sessionId, artifactId);
      const type = findPictureType(data.subarray(0, 16));
      if (type && !isGone) picture = URL.createObjectURL(new Blob([data], { type }));
      return picture ? { ...NOTHING, picture } : { ...NOTHING, text: new TextDecoder().decode(data) };
    };
    load().then(
      (found) => !isGone && setLoaded(found),
      (error: unknown) => !isGone && setLoaded({ ...NOTHING, error: error instanceof Error ? error.message : String(error) }),
    );
    return () => {
      isGone = true;
      if (picture) URL.revokeObjectURL(picture);
    };
  }, [sessionId, artifactId]);
  return loaded;
}

type Match = readonly [start: number, end: number];

interface Search {
  words: string;
  setWords: (words: string) => void;
  matches: readonly Match[];
  /** Which match is shown; -1 without any. */
  place: number;
  current: Match | null;
  step: (by: -1 | 1) => void;
}

function useSearch(lines: TextLines): Search {
  const [words, setWords] = useState("");
  const [place, setPlace] = useState(0);
  const matches = useMemo(() => findMatches(lines.text, words), [lines, words]);
  const used = matches.length === 0 ? -1 : Math.min(place, matches.length - 1);
  return {
    words,
    setWords: (next) => (setWords(next), setPlace(0)),
    matches,
    place: used,
    current: matches[used] ?? null,
    step: (by) => setPlace((used + by + matches.length) % Math.max(1, matches.length)),
  };
}

function SearchField({ search }: { search: Search }) {
  const { words, matches, place } = search;
  const count = matches.length >= MOST_MATCHES ? `${MOST_MATCHES}+` : String(matches.length);
  return (
    <>
      <label class="field long-find">
        <Icon name="search" class="sm" />
        <input
          type="search"
          placeholder="Search the output"
          aria-label="Search the output"
          value={words}
          onInput={(event) => search.setWords(event.currentTarget.value)}
          onKeyDown={(event) => {
            if (event.key === "Enter") search.step(event.shiftKey ? -1 : 1);
            if (event.key === "Escape" && words) (event.preventDefault(), event.stopPropagation(), search.setWords(""));
          }}
        />
      </label>
      {words && (
        <span class="m2 t12" role="status">
          {matches.length === 0 ? "No match" : `${place + 1} of ${count} ${matches.length === 1 ? "match" : "matches"}`}
        </span>
      )}
      {matches.length > 1 && (
        <span class="long-step">
          <button type="button" class="b bare ico" aria-label="Match before" onClick={() => search.step(-1)}>
            <Icon name="back" class="sm" />
          </button>
          <button type="button" class="b bare ico" aria-label="Next match" onClick={() => search.step(1)}>
            <Icon name="chev" class="sm" />
          </button>
        </span>
      )}
    </>
  );
}

const LINE = 20;
const OVERSCAN = 10;

interface LinesProps {
  lines: TextLines;
  matches: readonly Match[];
  current: Match | null;
}

function Lines({ lines, matches, current }: LinesProps) {
  const box = useRef<HTMLDivElement>(null);
  const [top, setTop] = useState(0);
  const total = lines.starts.length;
  const height = box.current?.clientHeight ?? 600;
  const first = Math.max(0, Math.min(total, Math.floor(top / LINE)) - OVERSCAN);
  const last = Math.min(total, first + Math.ceil(height / LINE) + 2 * OVERSCAN);
  useEffect(() => {
    if (!current || !box.current) return;
    const place = lineAt(lines, current[0]) * LINE;
    const { scrollTop, clientHeight } = box.current;
    if (place < scrollTop || place > scrollTop + clientHeight - 2 * LINE) box.current.scrollTop = Math.max(0, place - clientHeight / 2);
  }, [lines, current]);
  return (
    <div
      ref={box}
      class="long-lines"
      tabIndex={0}
      role="region"
      aria-label="Lines"
      style={{ "--digits": String(total).length }}
      onScroll={(event) => setTop(event.currentTarget.scrollTop)}
    >
      <div class="long-all" style={{ height: `${total * LINE}px` }}>
        <div style={{ transform: `translateY(${first * LINE}px)` }}>
          {Array.from({ length: last - first }, (_, index) => (
            <Line key={first + index} lines={lines} index={first + index} matches={matches} current={current} />
          ))}
        </div>
      </div>
    </div>
  );
}

/** A longer line is cut: the download has all of it. */
const LONGEST = 2000;

function Line({ lines, index, matches, current }: LinesProps & { index: number }) {
  const { start, text } = readLine(lines, index, LONGEST);
  const pieces = [];
  let done = 0;
  for (const match of matchesIn(matches, start, start + text.length)) {
    const [from, to] = [Math.max(done, match[0] - start), Math.min(text.length, match[1] - start)];
    pieces.push(<VisibleText text={text.slice(done, from)} />);
    pieces.push(<mark class={match === current ? "now" : ""}>{text.slice(from, to)}</mark>);
    done = to;
  }
  const isCut = lines.ends(index) - start > LONGEST;
  return (
    <div class="long-line">
      <span class="ln">{index + 1}</span>
      <span class="tx">
        {pieces}
        <VisibleText text={text.slice(done)} />
        {isCut && <em class="m3"> … {lines.ends(index) - start - LONGEST} more characters</em>}
      </span>
    </div>
  );
}

/** The matches that touch a stretch of the text. They are sorted. */
function matchesIn(matches: readonly Match[], start: number, end: number): Match[] {
  let low = 0;
  let high = matches.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if ((matches[middle]?.[1] ?? 0) <= start) low = middle + 1;
    else high = middle;
  }
  const found: Match[] = [];
  for (let index = low; index < matches.length; index++) {
    const match = matches[index];
    if (!match || match[0] >= end) break;
    found.push(match);
  }
  return found;
}
