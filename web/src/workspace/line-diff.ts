/** Compares two lists of lines or words: Myers' algorithm in linear space. A limit keeps it fast for very different texts. */

/** A piece of the comparison: `before[left, left + removed)` is replaced by `after[right, right + added)`. */
export interface Edit {
  left: number;
  removed: number;
  right: number;
  added: number;
}

interface Span {
  left: number;
  leftEnd: number;
  right: number;
  rightEnd: number;
}

/** A region in which more steps than this are needed counts as replaced as a whole. */
const MOST_STEPS = 1500;

/** The edits that lead from `before` to `after`, in order. Neighbouring edits are one. */
export function compare(before: readonly string[], after: readonly string[]): Edit[] {
  const ids = new Map<string, number>();
  const number = (text: string): number => {
    const known = ids.get(text);
    if (known !== undefined) return known;
    ids.set(text, ids.size);
    return ids.size - 1;
  };
  const a = Int32Array.from(before, number);
  const b = Int32Array.from(after, number);
  const isRemoved = new Uint8Array(a.length);
  const isAdded = new Uint8Array(b.length);
  markDifferences(a, b, ids.size, isRemoved, isAdded);
  return collectEdits(isRemoved, isAdded);
}

/** Lines that only one side has can never match. They are marked first, so Myers sees only the others. */
function markDifferences(a: Int32Array, b: Int32Array, kinds: number, isRemoved: Uint8Array, isAdded: Uint8Array): void {
  const inA = new Uint8Array(kinds);
  const inB = new Uint8Array(kinds);
  for (const id of a) inA[id] = 1;
  for (const id of b) inB[id] = 1;
  const keptA = Int32Array.from(a.keys()).filter((index) => inB[a[index] ?? 0]);
  const keptB = Int32Array.from(b.keys()).filter((index) => inA[b[index] ?? 0]);
  const left = keptA.map((index) => a[index] ?? 0);
  const right = keptB.map((index) => b[index] ?? 0);
  isRemoved.fill(1);
  isAdded.fill(1);
  for (const [x, y] of findMatches(left, right)) {
    isRemoved[keptA[x] ?? 0] = 0;
    isAdded[keptB[y] ?? 0] = 0;
  }
}

/** Pairs of equal entries, in order. */
function findMatches(a: Int32Array, b: Int32Array): [number, number][] {
  const found: [number, number][] = [];
  const open: Span[] = [{ left: 0, leftEnd: a.length, right: 0, rightEnd: b.length }];
  for (let span = open.pop(); span; span = open.pop()) {
    let { left, leftEnd, right, rightEnd } = span;
    while (left < leftEnd && right < rightEnd && a[left] === b[right]) found.push([left++, right++]);
    while (leftEnd > left && rightEnd > right && a[leftEnd - 1] === b[rightEnd - 1]) found.push([--leftEnd, --rightEnd]);
    if (left === leftEnd || right === rightEnd) continue;
    const middle = findMiddle(a, b, { left, leftEnd, right, rightEnd });
    if (!middle) continue;
    open.push({ left, leftEnd: middle[0], right, rightEnd: middle[1] });
    open.push({ left: middle[0], leftEnd, right: middle[1], rightEnd });
  }
  return found;
}

/** A point on a shortest path: where the search from the start meets the search from the end. Null beyond the limit. */
function findMiddle(a: Int32Array, b: Int32Array, span: Span): [number, number] | null {
  const n = span.leftEnd - span.left;
  const m = span.rightEnd - span.right;
  const most = Math.min(Math.ceil((n + m) / 2), MOST_STEPS);
  const offset = most + 1;
  const forward = new Int32Array(2 * most + 3);
  const backward = new Int32Array(2 * most + 3);
  const delta = n - m;
  const isOdd = (delta & 1) !== 0;
  for (let d = 0; d <= most; d++) {
    for (let k = -d; k <= d; k += 2) {
      let x = step(forward, offset + k, k, d);
      while (x < n && x - k < m && x - k >= 0 && a[span.left + x] === b[span.right + x - k]) x++;
      forward[offset + k] = x;
      const other = delta - k;
      const isMeeting = isOdd && Math.abs(other) < d && x + (backward[offset + other] ?? 0) >= n;
      if (isMeeting && x <= n && x - k <= m && x - k >= 0) return place(span, x, x - k);
    }
    for (let k = -d; k <= d; k += 2) {
      let x = step(backward, offset + k, k, d);
      while (x < n && x - k < m && x - k >= 0 && a[span.leftEnd - 1 - x] === b[span.rightEnd - 1 - x + k]) x++;
      backward[offset + k] = x;
      const other = delta - k;
      const isMeeting = !isOdd && Math.abs(other) <= d && x + (forward[offset + other] ?? 0) >= n;
      if (isMeeting && x <= n && x - k <= m && x - k >= 0) return place(span, n - x, m - x + k);
    }
  }
  return null;
}

function step(reached: Int32Array, index: number, k: number, d: number): number {
  const below = reached[index - 1] ?? 0;
  const above = reached[index + 1] ?? 0;
  if (d === 0) return 0;
  return k === -d || (k !== d && below < above) ? above : below + 1;
}

/** A corner of the span would split nothing, so the search would never end. */
function place(span: Span, x: number, y: number): [number, number] | null {
  const isCorner = (x === 0 && y === 0) || (x === span.leftEnd - span.left && y === span.rightEnd - span.right);
  return isCorner ? null : [span.left + x, span.right + y];
}

function collectEdits(isRemoved: Uint8Array, isAdded: Uint8Array): Edit[] {
  const edits: Edit[] = [];
  let left = 0;
  let right = 0;
  while (left < isRemoved.length || right < isAdded.length) {
    const edit: Edit = { left, removed: 0, right, added: 0 };
    while (isRemoved[left]) left++;
    while (isAdded[right]) right++;
    edit.removed = left - edit.left;
    edit.added = right - edit.right;
    if (edit.removed > 0 || edit.added > 0) edits.push(edit);
    left++;
    right++;
  }
  return edits;
}
