/** How well a text fits what was typed. */

/** Higher fits better; null does not fit. All letters must appear in order. Starts of words count more. */
export function scoreMatch(text: string, typed: string): number | null {
  const lower = text.toLowerCase();
  const wanted = typed.toLowerCase().replace(/\s+/g, "");
  if (wanted === "") return 0;
  const whole = lower.indexOf(typed.toLowerCase().trim());
  if (whole >= 0) return 1000 - whole - lower.length / 100 + (isWordStart(lower, whole) ? 200 : 0);
  let score = 0;
  let at = -1;
  for (const letter of wanted) {
    const next = lower.indexOf(letter, at + 1);
    if (next < 0) return null;
    score += next === at + 1 ? 8 : isWordStart(lower, next) ? 6 : -Math.min(4, next - at);
    at = next;
  }
  return score > 0 ? score : null;
}

function isWordStart(text: string, at: number): boolean {
  return at === 0 || /[\s/_.:-]/.test(text[at - 1] ?? "");
}

/** The items that fit, the best first. Equal ones keep their order. */
export function filterMatches<T>(items: readonly T[], typed: string, describe: (item: T) => string): T[] {
  const scored = items.map((item) => ({ item, score: scoreMatch(describe(item), typed) }));
  const fitting = scored.filter((one): one is { item: T; score: number } => one.score !== null);
  return fitting.sort((a, b) => b.score - a.score).map((one) => one.item);
}
