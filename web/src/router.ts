/** The address of the page. Every session and every position has one. */

import { signal } from "@preact/signals";

export type SessionTab = "conversation" | "changes" | "time";

export type Route =
  | { page: "home" }
  | { page: "inbox"; question: string }
  | { page: "new" }
  | { page: "settings"; section: string }
  | { page: "session"; id: string; tab: SessionTab; at: number | null }
  | { page: "compare"; left: string; right: string }
  | { page: "unknown"; path: string };

export function parsePath(path: string): Route {
  const [first = "", ...rest] = path.split("/").slice(1).map(decode);
  if (first === "") return { page: "home" };
  if (first === "inbox") return { page: "inbox", question: rest.join("/") };
  if (first === "new") return { page: "new" };
  if (first === "settings") return { page: "settings", section: rest[0] ?? "" };
  if (first === "compare" && rest[0] && rest[1]) return { page: "compare", left: rest[0], right: rest[1] };
  if (first === "s" && rest[0]) return parseSession(rest[0], rest.slice(1)) ?? { page: "unknown", path };
  return { page: "unknown", path };
}

/** A part that is no valid encoding stands for itself. */
function decode(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

/** `/s/ID`, `/s/ID/changes`, `/s/ID/time`, `/s/ID/at/12`, `/s/ID/changes/at/12`. */
function parseSession(id: string, rest: string[]): Route | null {
  const tab: SessionTab = rest[0] === "changes" || rest[0] === "time" ? rest[0] : "conversation";
  const after = tab === "conversation" ? rest : rest.slice(1);
  if (after.length === 0) return { page: "session", id, tab, at: null };
  const at = Number(after[1]);
  return after[0] === "at" && Number.isSafeInteger(at) && at > 0 ? { page: "session", id, tab, at } : null;
}

export function buildPath(route: Route): string {
  const encode = encodeURIComponent;
  switch (route.page) {
    case "home":
      return "/";
    case "inbox":
      return route.question ? `/inbox/${route.question.split("/").map(encode).join("/")}` : "/inbox";
    case "new":
      return "/new";
    case "settings":
      return route.section ? `/settings/${encode(route.section)}` : "/settings";
    case "compare":
      return `/compare/${encode(route.left)}/${encode(route.right)}`;
    case "session": {
      const tab = route.tab === "conversation" ? "" : `/${route.tab}`;
      return `/s/${encode(route.id)}${tab}${route.at === null ? "" : `/at/${route.at}`}`;
    }
    case "unknown":
      return route.path;
  }
}

/** The current route. Change it with `navigate`. */
export const route = signal<Route>(parsePath(globalThis.location?.pathname ?? "/"));

export function navigate(to: Route, options: { replace?: boolean } = {}): void {
  const path = buildPath(to);
  if (path !== location.pathname) history[options.replace ? "replaceState" : "pushState"](null, "", path);
  route.value = to;
}

export function openSession(id: string, at: number | null = null): void {
  navigate({ page: "session", id, tab: "conversation", at });
}

/** Follow the back button, and links inside of the page, without loading it again. */
export function startRouter(): void {
  addEventListener("popstate", () => (route.value = parsePath(location.pathname)));
  document.addEventListener("click", (event) => {
    const link = event.target instanceof Element ? event.target.closest("a[href]") : null;
    const isPlain = event.button === 0 && !event.metaKey && !event.ctrlKey && !event.shiftKey && !event.defaultPrevented;
    if (!(link instanceof HTMLAnchorElement) || !isPlain || link.target || link.hasAttribute("download")) return;
    const isPage = link.origin === location.origin && parsePath(link.pathname).page !== "unknown";
    if (!isPage || link.hash) return;
    event.preventDefault();
    navigate(parsePath(link.pathname));
  });
}
