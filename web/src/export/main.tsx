/** The start of an exported session: one file that draws itself and asks nobody for anything. */

import { render } from "preact";
import { keptArtifacts } from "../store/artifacts.ts";
import { readDocument } from "./document.ts";
import { ExportPage } from "./export-page.tsx";
import "../styles/tokens.css";
import "../styles/base.css";
import "../styles/shell.css";
import "../session/session.css";
import "../workspace/diff.css";
import "../questions/questions.css";
import "../time/time.css";
import "./export.css";

const found = readDocument(document.getElementById("treadle-data")?.textContent ?? "");
const place = document.getElementById("app") ?? document.body;

// A link of the page leads nowhere from a file.
document.addEventListener("click", (event) => {
  const link = event.target instanceof Element ? event.target.closest("a[href^='/']") : null;
  if (link !== null) event.preventDefault();
});

if (typeof found === "string") {
  render(<p class="export-none">{found}</p>, place);
} else {
  for (const [id, text] of Object.entries(found.artifacts)) keptArtifacts.set(id, text);
  render(<ExportPage document={found} />, place);
}
