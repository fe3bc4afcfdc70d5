/** When a question may be answered: not in its first half second, and not before its end was on the screen. */

import { useEffect, useState } from "preact/hooks";
import type { RefObject } from "preact";

const INERT_MS = 500;

/** True for half a second after `content` changes, counted only while the page is visible. Empty means nothing to wait for. */
export function useInert(content: string): boolean {
  const [readyFor, setReadyFor] = useState("");
  useEffect(() => {
    if (!content) return;
    let timer: ReturnType<typeof setTimeout> | undefined;
    const start = () => {
      clearTimeout(timer);
      if (document.visibilityState === "hidden") setReadyFor("");
      else timer = setTimeout(() => setReadyFor(content), INERT_MS);
    };
    start();
    document.addEventListener("visibilitychange", start);
    return () => {
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", start);
    };
  }, [content]);
  return content !== "" && readyFor !== content;
}

/** Whether an element was on the screen since `content` changed. */
export function useSeen(element: RefObject<HTMLElement>, content: string): boolean {
  const [seenFor, setSeenFor] = useState("");
  useEffect(() => {
    if (!element.current) return;
    const observer = new IntersectionObserver((entries) => {
      if (entries.some((entry) => entry.isIntersecting)) setSeenFor(content);
    });
    observer.observe(element.current);
    return () => observer.disconnect();
  }, [element, content]);
  return seenFor === content;
}
