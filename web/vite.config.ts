import { defineConfig, type Plugin } from "vite";

/** Keeps the lexer of marked and drops its renderer, which the page never uses: 3 kB of the first load. */
export function keepOnlyLexer(): Plugin {
  return {
    name: "keep-only-lexer",
    transform(code, id) {
      if (!id.endsWith("/marked/lib/marked.esm.js")) return undefined;
      const [, lexer] = /(\w+) as Lexer\b/.exec(code) ?? [];
      const end = code.search(/var \w+=new \w+;function \w+\(\w+,\w+\)\{return \w+\.parse/);
      if (!lexer || end < 0) throw new Error("marked has changed: find the end of its lexer again, or leave this plugin out");
      return { code: `${code.slice(0, end)}export{${lexer} as Lexer};`, map: null };
    },
  };
}

/**
 * Few files compress better than many. A module that the first load needs may only be in the first group: otherwise the
 * whole group of it would be loaded at first, which tests/web/test_size.py sees.
 */
const GROUPS = [
  { name: "shared", test: /\/node_modules\/(?!highlight)|\/src\/((ui|store)\/|[\w-]+\.ts$)/ },
  {
    name: "write",
    test: fitOne([
      "composer/(attach|completion|composer|history|message-field|queue|session-settings|slash|use-)",
      "palette/(choices|fuzzy|keys-dialog|palette-dialog)",
      "list/new-",
    ]),
  },
  {
    name: "later",
    test: fitOne([
      "time/(checkpoints|compare|fork-|rewind|segments|time-panel|waterfall)",
      "workspace/(artifact|changes|file-pane|long-)",
      "questions/(inbox-|settled)",
      "settings/(?!sections|settings-side)",
    ]),
  },
];

/** Fits the modules of `src` whose paths begin in one of these ways. */
function fitOne(beginnings: string[]): RegExp {
  return new RegExp(`/src/(${beginnings.join("|")})[\\w-]*\\.tsx?$`);
}

/** The page is built into the Python package, which serves it. `TREADLE_SERVER` is the server for `npm run dev`. */
export default defineConfig({
  plugins: [keepOnlyLexer()],
  oxc: { jsx: { runtime: "automatic", importSource: "preact" } },
  build: {
    outDir: "../src/treadle/server/static",
    emptyOutDir: true,
    target: ["chrome123", "firefox120", "safari17.5"],
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    reportCompressedSize: false,
    rolldownOptions: { output: { codeSplitting: { groups: GROUPS, includeDependenciesRecursively: false } } },
  },
  server: {
    proxy: Object.fromEntries(
      ["/v1", "/login", "/logout", "/health"].map((path) => [path, process.env.TREADLE_SERVER ?? "http://127.0.0.1:8420"]),
    ),
  },
});
