import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import { resolve } from "node:path";
import { defineConfig, type Plugin } from "vite";
import { keepOnlyLexer } from "./vite.config.ts";

/** What the file may do: run its own script, and nothing else. No request leaves it. */
function writePolicy(script: string, style: string): string {
  const hash = (text: string): string => `'sha256-${createHash("sha256").update(text).digest("base64")}'`;
  return [
    "default-src 'none'", `script-src ${hash(script)}`, `style-src ${hash(style)}`, "img-src data: blob:",
    "base-uri 'none'", "form-action 'none'", "require-trusted-types-for 'script'", "trusted-types 'none'",
  ].join("; ");
}

/** The icons of the page. */
function readSprite(): string {
  const [sprite] = /<svg class="sprite"[^]*?<\/svg>/.exec(readFileSync("index.html", "utf8")) ?? [];
  if (!sprite) throw new Error("index.html has no sprite");
  return sprite;
}

/** Puts the script, the style sheet and the icons into the HTML file, so that it is whole by itself. */
function inlineAll(): Plugin {
  return {
    name: "inline-all",
    enforce: "post",
    generateBundle(_options, bundle) {
      const files = Object.values(bundle);
      const scripts = files.flatMap((file) => (file.type === "chunk" ? [file.code] : []));
      const styles = files.flatMap((file) => (file.type === "asset" && file.fileName.endsWith(".css") ? [String(file.source)] : []));
      const page = files.find((file) => file.type === "asset" && file.fileName === "export.html");
      if (page?.type !== "asset" || scripts.length !== 1) throw new Error(`not one script: ${Object.keys(bundle).join(", ")}`);
      // What is loaded later in the page is in this script already. Neither may end its own element.
      const script = (scripts[0] ?? "").replaceAll("__VITE_PRELOAD__", "[]").replace(/<(?=\/script|!--)/gi, "\\x3C");
      const style = styles.join("\n").replace(/<(?=\/style)/gi, "\\3C ");
      const policy = `<meta http-equiv="Content-Security-Policy" content="${writePolicy(script, style)}">`;
      const html = String(page.source)
        .replace(/\s*<script type="module"[^]*?<\/script>/, "")
        .replace(/\s*<link rel="stylesheet"[^>]*>/g, "")
        .replace('<meta charset="utf-8">', (charset) => `${charset}\n    ${policy}`)
        .replace("</head>", (end) => `  <style>${style}</style>\n  ${end}`)
        .replace('<div id="app">', (app) => `${readSprite()}\n    ${app}`)
        .replace("</body>", (end) => `<script type="module">${script}</script>\n  ${end}`);
      for (const name of Object.keys(bundle)) delete bundle[name];
      this.emitFile({ type: "asset", fileName: "export.html", source: html });
    },
  };
}

/** Modules that a file needs in another form: it draws all rows, and nobody can answer or change anything. */
const REPLACED = {
  "virtual-rows": "src/export/all-rows.tsx",
  "question-card": "src/export/question-card.tsx",
  "message-menu": "src/export/message-menu.tsx",
};

/** One session as one HTML file. The server puts the session into it. */
export default defineConfig({
  oxc: { jsx: { runtime: "automatic", importSource: "preact" } },
  plugins: [keepOnlyLexer(), inlineAll()],
  resolve: {
    alias: Object.entries(REPLACED).map(([name, own]) => ({ find: new RegExp(`^.*/${name}\\.tsx$`), replacement: resolve(own) })),
  },
  publicDir: false,
  build: {
    outDir: "../src/treadle/server/static",
    emptyOutDir: false,
    target: ["chrome123", "firefox120", "safari17.5"],
    assetsInlineLimit: Number.MAX_SAFE_INTEGER,
    cssCodeSplit: false,
    modulePreload: false,
    reportCompressedSize: false,
    rolldownOptions: { input: "export.html", output: { codeSplitting: false } },
  },
});
