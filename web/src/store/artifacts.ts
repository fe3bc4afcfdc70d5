/** Outputs that were too long for the log, or are pictures. */

import { request, sessionPath } from "../api.ts";

/** The outputs that came along with an exported session, in base64 by the id of their artifact. Empty in the page of a server. */
export const keptArtifacts = new Map<string, string>();

export function artifactPath(sessionId: string, artifactId: string): string {
  return sessionPath(sessionId, `/artifacts/${encodeURIComponent(artifactId)}`);
}

export async function loadArtifact(sessionId: string, artifactId: string): Promise<Uint8Array<ArrayBuffer>> {
  const kept = keptArtifacts.get(artifactId);
  if (kept !== undefined) return Uint8Array.from(atob(kept), (character) => character.charCodeAt(0));
  return new Uint8Array(await (await request("GET", artifactPath(sessionId, artifactId))).arrayBuffer());
}
