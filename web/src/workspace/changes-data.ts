/** What the Changes tab knows: the changed files since a position, and the long outputs that were kept. */

import { useEffect, useState } from "preact/hooks";
import { api, sessionPath } from "../api.ts";
import type { AnyFact, CallFinished } from "../generated/events.ts";
import type { ChangedFile } from "../generated/api.ts";
import type { OpenSession } from "../store/open-session.ts";

/** What facts say about changes. It grows with the facts. */
export class ChangeFacts {
  readonly facts: readonly AnyFact[];
  /** Calls whose output was too long for the model: the whole of it was kept. */
  readonly artifacts: CallFinished[] = [];
  /** Grows whenever files may have changed. */
  revision = 0;
  lastMessage = 0;
  private read = 0;

  constructor(facts: readonly AnyFact[]) {
    this.facts = facts;
  }

  update(): this {
    for (; this.read < this.facts.length; this.read++) {
      const fact = this.facts[this.read];
      if (fact) this.add(fact);
    }
    return this;
  }

  private add(fact: AnyFact): void {
    switch (fact.type) {
      case "message_received":
        this.lastMessage = fact.seq;
        return;
      case "files_kept":
      case "rewound":
        this.revision++;
        return;
      case "call_finished":
        this.revision++;
        if (fact.truncation?.artifact) this.artifacts.push(fact);
        return;
      default:
    }
  }
}

const known = new WeakMap<readonly AnyFact[], ChangeFacts>();

export function getChangeFacts(facts: readonly AnyFact[]): ChangeFacts {
  const found = known.get(facts) ?? new ChangeFacts(facts);
  known.set(facts, found);
  return found.update();
}

export interface Changes {
  files: ChangedFile[] | null;
  error: string;
}

/** So long after the last change the server is asked again, in milliseconds. */
const PAUSE = 300;

/** How the files differ now from what they were at a position. */
export function useChanges(session: OpenSession, after: number): Changes {
  const [found, setFound] = useState<Changes>({ files: null, error: "" });
  const { revision } = getChangeFacts(session.facts);
  const isReady = session.loading.value === "ready";
  useEffect(() => {
    if (!isReady) return undefined;
    let isGone = false;
    const timer = setTimeout(() => {
      api.get<ChangedFile[]>(sessionPath(session.id, "/changes"), { after }).then(
        (files) => !isGone && setFound({ files, error: "" }),
        (error: unknown) => !isGone && setFound({ files: null, error: error instanceof Error ? error.message : String(error) }),
      );
    }, PAUSE);
    return () => {
      isGone = true;
      clearTimeout(timer);
    };
  }, [session, after, revision, isReady]);
  return found;
}

/** All diffs as one patch that git takes. What git keeps itself, such as branches, is not in it. */
export function buildPatch(files: readonly ChangedFile[]): string {
  return files.filter((file) => file.diff.startsWith("--- ")).map((file) => `${file.diff}\n`).join("");
}
