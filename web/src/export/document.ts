/** The session in an exported file. */

import type { AnyFact } from "../generated/events.ts";

export interface ExportDocument {
  version: 1;
  facts: AnyFact[];
  /** Whole outputs in base64, by the id of their artifact. */
  artifacts: Record<string, string>;
}

/** Read the session of this file, or say why there is none. */
export function readDocument(text: string): ExportDocument | string {
  if (!text.trim()) return "This file has no session in it.";
  try {
    const found = JSON.parse(text) as { version?: unknown; facts?: unknown };
    if (found.version !== 1) return "This file is of a newer version of treadle, which its own script cannot read.";
    if (!Array.isArray(found.facts) || found.facts.length === 0) return "This file has no session in it.";
    return found as ExportDocument;
  } catch {
    return "This file is damaged: its session cannot be read.";
  }
}
