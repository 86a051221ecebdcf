// How the page is built into the Python package, and served while it is being worked on.
import { defineConfig } from "vitest/config";

// Where `npm run dev` finds a server: `coinkv serve`, or tests/browser/scripted_server.py.
const SERVER = "http://127.0.0.1:8000";

export default defineConfig({
  base: "./",
  build: {
    outDir: "../src/coinkv/serve/page",
    emptyOutDir: true,
    target: ["chrome123", "firefox121", "safari17.5"],
    // A data: URL would need a wider content security policy.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    license: { fileName: "licenses.md" },
  },
  oxc: { jsx: { runtime: "automatic", importSource: "preact" } },
  server: { proxy: { "/v1": SERVER } },
  test: { include: ["test/**/*.test.ts"] },
});
