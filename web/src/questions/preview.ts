/** What a question would do, as the server computes it: the parts of a command, the diff, folder and network. */

import { useEffect, useState } from "preact/hooks";
import { api } from "../api.ts";
import type { PreviewView } from "../generated/api.ts";
import { askPath } from "./answers.ts";
import type { Ask } from "./ask.ts";

const KEPT = 50;
const cache = new Map<string, PreviewView>();

/** Null until it is here. The question can be read and answered without it. */
export function usePreview(ask: Ask): PreviewView | null {
  const key = `${ask.id} ${ask.digest}`;
  const [, redraw] = useState(0);
  useEffect(() => {
    if (ask.kind !== "approval" || cache.has(key)) return;
    let isGone = false;
    api.get<PreviewView>(askPath(ask, "approvals")).then(
      (preview) => {
        cache.set(key, preview);
        const oldest = cache.keys().next().value;
        if (cache.size > KEPT && oldest !== undefined) cache.delete(oldest);
        if (!isGone) redraw((count) => count + 1);
      },
      () => undefined, // it was answered meanwhile, or there is no connection: what the question itself says stays
    );
    return () => {
      isGone = true;
    };
  }, [key]);
  return cache.get(key) ?? null;
}
