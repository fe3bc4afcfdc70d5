/** Parts of the page that are loaded when they are shown for the first time. */

import type { ComponentChildren, ComponentType } from "preact";
import { useEffect, useState } from "preact/hooks";

type Load<Props> = () => Promise<ComponentType<Props>>;

const loads: (() => Promise<unknown>)[] = [];

/** Load all parts, when the page has nothing else to do. So it goes on as it is when the server is updated or away. */
export function loadAllParts(): void {
  const wait = globalThis.requestIdleCallback ?? ((run: () => void) => setTimeout(run, 500));
  wait(() => loads.forEach((load) => void load().catch(() => undefined)));
}

/** A component that stands for one of another file. `waiting` is shown until the file is there. */
export function lazy<Props extends object>(load: Load<Props>, waiting: ComponentChildren = null): ComponentType<Props> {
  let Part: ComponentType<Props> | null = null;
  const loadPart = async (): Promise<void> => void (Part ??= await load());
  loads.push(loadPart);
  return function Lazy(props: Props) {
    const [, redraw] = useState(0);
    const [hasFailed, setFailed] = useState(false);
    const isDrawn = Part !== null;
    useEffect(() => {
      // It may have been loaded since this was drawn.
      if (isDrawn) return undefined;
      let isGone = false;
      loadPart().then(
        () => void (isGone || redraw((count) => count + 1)),
        () => void (isGone || setFailed(true)),
      );
      return () => void (isGone = true);
    }, []);
    if (Part !== null) return <Part {...props} />;
    return <>{hasFailed ? <NotLoaded /> : waiting}</>;
  };
}

/** After an update the server no longer has the files that this page was built with. */
function NotLoaded() {
  return (
    <div class="main center">
      <div class="empty" role="alert">
        <h1>This part of the page did not load</h1>
        <p class="m2">The server was updated or is out of reach. Reload the page to go on.</p>
        <button type="button" class="b pri" onClick={() => location.reload()}>
          Reload
        </button>
      </div>
    </div>
  );
}
