/** Where the rows of a long list stand: as measured where they were drawn, and as guessed elsewhere. Pure. */

interface Keyed {
  key: string;
}

/** A smaller change, in pixels, is none. */
const SAME = 0.5;

export class RowPlaces<Row extends Keyed> {
  /** The top of each row, and at last the height of all. */
  readonly tops: number[] = [0];
  private readonly keys: string[] = [];
  private readonly heights: number[] = [];
  private readonly measured = new Map<string, number>();

  /** Take over the rows of now. Those before the first that is another one keep their places. */
  update(rows: readonly Row[], guess: (row: Row, before: Row | undefined) => number): void {
    let from = 0;
    while (from < rows.length && rows[from]?.key === this.keys[from]) from++;
    if (from === rows.length && from === this.keys.length) return;
    this.keys.length = this.heights.length = from;
    for (let at = from; at < rows.length; at++) {
      const row = rows[at] as Row;
      this.keys.push(row.key);
      this.heights.push(this.measured.get(row.key) ?? guess(row, rows[at - 1]));
    }
    this.sum(from);
  }

  get height(): number {
    return this.tops.at(-1) ?? 0;
  }

  keyAt(index: number): string | undefined {
    return this.keys[index];
  }

  topOf(key: string): number | undefined {
    return this.tops[this.keys.indexOf(key)];
  }

  /** The row at a position, by halving. */
  rowAt(position: number): number {
    let [low, high] = [0, Math.max(0, this.keys.length - 1)];
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if ((this.tops[middle] ?? 0) <= position) low = middle;
      else high = middle - 1;
    }
    return low;
  }

  /** Note heights as they were drawn. Returns by how much rows that end above `top` have grown, or null for no change. */
  measure(drawn: readonly { index: number; key: string; height: number }[], top: number): number | null {
    let from = Infinity;
    let above = 0;
    for (const { index, key, height } of drawn) {
      const change = height - (this.heights[index] ?? height);
      if (this.keys[index] !== key || Math.abs(change) < SAME) continue;
      if ((this.tops[index + 1] ?? Infinity) <= top) above += change;
      this.heights[index] = height;
      this.measured.set(key, height);
      from = Math.min(from, index);
    }
    if (from === Infinity) return null;
    this.sum(from);
    return above;
  }

  private sum(from: number): void {
    this.tops.length = from + 1;
    for (let at = from; at < this.heights.length; at++) this.tops.push((this.tops[at] ?? 0) + (this.heights[at] ?? 0));
  }
}
