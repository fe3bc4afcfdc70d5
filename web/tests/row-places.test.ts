/** Where rows stand, against a list that adds up all heights anew. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { RowPlaces } from "../src/session/row-places.ts";

const GUESS = 30;

function build(...keys: string[]): { key: string }[] {
  return keys.map((key) => ({ key }));
}

test("tops are the sums of the heights, measured or guessed", () => {
  const places = new RowPlaces();
  places.update(build("a", "b", "c"), () => GUESS);
  assert.deepEqual([...places.tops], [0, 30, 60, 90]);
  assert.equal(places.measure([{ index: 1, key: "b", height: 100 }], 0), 0);
  assert.deepEqual([...places.tops], [0, 30, 130, 160]);
  assert.equal(places.height, 160);
});

test("only growth wholly above the position moves it", () => {
  const places = new RowPlaces();
  places.update(build("a", "b", "c"), () => GUESS);
  const drawn = [{ index: 0, key: "a", height: 50 }, { index: 1, key: "b", height: 50 }, { index: 2, key: "c", height: 50 }];
  assert.equal(places.measure(drawn, 45), 20);
  assert.equal(places.measure(drawn, 45), null, "nothing has changed since");
});

test("a height that was measured for another row is not taken", () => {
  const places = new RowPlaces();
  places.update(build("a", "b"), () => GUESS);
  assert.equal(places.measure([{ index: 1, key: "old", height: 90 }], 1000), null);
});

test("heights are known again when a row comes back elsewhere", () => {
  const places = new RowPlaces();
  places.update(build("a", "b", "c"), () => GUESS);
  places.measure([{ index: 2, key: "c", height: 77 }], 0);
  places.update(build("a", "x", "y", "b", "c"), () => GUESS);
  assert.deepEqual([...places.tops], [0, 30, 60, 90, 120, 197]);
  assert.equal(places.topOf("c"), 120);
  assert.equal(places.topOf("gone"), undefined);
});

test("a row is found at every position", () => {
  const places = new RowPlaces();
  places.update(build(...Array.from({ length: 99 }, (_, at) => `r${at}`)), (row) => Number(row.key.slice(1)) + 1);
  for (let position = 0; position < places.height; position++) {
    const at = places.rowAt(position);
    assert.ok((places.tops[at] ?? 0) <= position && position < (places.tops[at + 1] ?? 0), `${position}`);
  }
  assert.equal(places.rowAt(-50), 0);
  assert.equal(places.rowAt(1e9), 98);
  assert.equal(new RowPlaces().rowAt(10), 0);
});
