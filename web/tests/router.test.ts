/** Addresses: each route has one, and none breaks the page. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { buildPath, parsePath, type Route } from "../src/router.ts";

const ROUTES: Route[] = [
  { page: "home" },
  { page: "inbox", question: "" },
  { page: "inbox", question: "3f2a/call 1%" },
  { page: "new" },
  { page: "settings", section: "" },
  { page: "settings", section: "rules" },
  { page: "session", id: "3f2a", tab: "conversation", at: null },
  { page: "session", id: "3f2a", tab: "time", at: null },
  { page: "session", id: "a b%", tab: "changes", at: 12 },
  { page: "compare", left: "3f2a", right: "77" },
];

test("each route is read from the path that is built for it", () => {
  for (const route of ROUTES) assert.deepEqual(parsePath(buildPath(route)), route);
});

test("an address that means nothing is unknown, and breaks nothing", () => {
  for (const path of ["/nothing", "/s", "/s/", "/s/3f2a/at", "/s/3f2a/at/0", "/s/3f2a/at/x", "/s/3f2a/at/1e99", "/compare/one"])
    assert.equal(parsePath(path).page, "unknown", path);
  assert.deepEqual(parsePath("/s/%E0%A4%A"), { page: "session", id: "%E0%A4%A", tab: "conversation", at: null });
});
