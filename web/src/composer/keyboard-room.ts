/** Some phones lay their keyboard over the page instead of making the page smaller. Then the page leaves room for it. */

/** What a keyboard hides at least, in pixels. Bars of the browser are lower. */
const LOWEST = 120;

/** Returns a function that stops it. */
export function leaveKeyboardRoom(): () => void {
  const view = globalThis.visualViewport;
  if (!view) return () => undefined;
  const { style } = document.documentElement;
  const update = (): void => {
    const hidden = Math.round(innerHeight - view.height);
    const isOpen = hidden >= LOWEST && view.scale === 1;
    style.setProperty("--keyboard", isOpen ? `${hidden}px` : "0px");
    // The browser has moved the page to show the field. There is room for it now.
    if (isOpen) scrollTo(0, 0);
  };
  view.addEventListener("resize", update);
  return () => {
    view.removeEventListener("resize", update);
    style.removeProperty("--keyboard");
  };
}
