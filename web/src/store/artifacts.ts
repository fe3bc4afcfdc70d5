/** Long outputs that came along with an exported session, by the id of their artifact. Empty in the page of a server. */
export const keptArtifacts = new Map<string, string>();
