/** The parts that every section of the settings is made of: a heading, lines, and what is loaded from the server. */

import { useCallback, useEffect, useState } from "preact/hooks";
import type { ComponentChildren } from "preact";
import { api } from "../api.ts";
import { Icon, type IconName } from "../ui/icon.tsx";

export interface Loaded<T> {
  data: T | null;
  error: string;
  reload: () => void;
  /** Show other data, such as after a change that the server has confirmed. */
  setData: (data: T) => void;
}

export function useLoaded<T>(path: string): Loaded<T> {
  const [data, setData] = useState<T | null>(null);
  const [error, setError] = useState("");
  const reload = useCallback(() => {
    setError("");
    api.get<T>(path).then(setData, (problem: unknown) => setError(problem instanceof Error ? problem.message : String(problem)));
  }, [path]);
  useEffect(reload, [reload]);
  return { data, error, reload, setData };
}

interface SectionProps {
  id: string;
  title: string;
  /** Buttons or a field at the end of the heading. */
  tools?: ComponentChildren;
  /** Why the server did not answer. */
  error?: string;
  onRetry?: () => void;
  isLoading?: boolean;
  children?: ComponentChildren;
}

export function Section({ id, title, tools, error = "", onRetry, isLoading = false, children }: SectionProps) {
  return (
    <section class="sec" id={id} aria-labelledby={`${id}-title`} aria-busy={isLoading}>
      <header>
        <h2 id={`${id}-title`}>{title}</h2>
        <span class="sp" />
        {tools}
      </header>
      {error && (
        <div class="set-note bad" role="alert">
          <Icon name="fail" class="sm" />
          <span>{error}</span>
          {onRetry && (
            <button type="button" class="b bare" onClick={onRetry}>
              Try again
            </button>
          )}
        </div>
      )}
      {isLoading && !error && <div class="set-note m3">Loading</div>}
      {children}
    </section>
  );
}

interface LineProps {
  icon: IconName;
  name: ComponentChildren;
  children?: ComponentChildren;
  /** The buttons at the end. */
  actions?: ComponentChildren;
}

/** One line of a `List`. */
export function Line({ icon, name, children, actions }: LineProps) {
  return (
    <li class="set">
      <Icon name={icon} />
      <div class="set-name">{name}</div>
      <div class="d">{children}</div>
      <div class="acts2">{actions}</div>
    </li>
  );
}

/** The lines of a section. Safari takes lists without marks for lists only if they say that they are. */
export function List({ children }: { children: ComponentChildren }) {
  return <ul role="list">{children}</ul>;
}

/** A sentence where there are no lines. */
export function Note({ children }: { children: ComponentChildren }) {
  return <p class="set-note m2">{children}</p>;
}

const FIRST_SHOWN = 12;

interface LinesProps<T> {
  items: readonly T[];
  draw: (item: T) => ComponentChildren;
}

/** The first lines of a long list, and a button for all. */
export function Lines<T>({ items, draw }: LinesProps<T>) {
  const [isOpen, setOpen] = useState(false);
  const isLong = items.length > FIRST_SHOWN + 3;
  const shown = isLong && !isOpen ? items.slice(0, FIRST_SHOWN) : items;
  return (
    <>
      {shown.length > 0 && <List>{shown.map(draw)}</List>}
      {isLong && !isOpen && (
        <button type="button" class="b bare set-more" onClick={() => setOpen(true)}>
          <Icon name="down" class="sm" /> Show all {items.length}
        </button>
      )}
    </>
  );
}
