import { defineConfig } from "vite";

/** The page is built into the Python package, which serves it. `TREADLE_SERVER` is the server for `npm run dev`. */
export default defineConfig({
  oxc: { jsx: { runtime: "automatic", importSource: "preact" } },
  build: {
    outDir: "../src/treadle/server/static",
    emptyOutDir: true,
    target: ["chrome123", "firefox120", "safari17.5"],
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    reportCompressedSize: false,
  },
  server: {
    proxy: Object.fromEntries(
      ["/v1", "/login", "/logout", "/health"].map((path) => [path, process.env.TREADLE_SERVER ?? "http://127.0.0.1:8420"]),
    ),
  },
});
