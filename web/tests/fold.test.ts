/** The fold, against the states that the server computes from the same facts. `TREADLE_RECORDINGS` is their folder. */

import assert from "node:assert/strict";
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { applyFact, copyView, createView, describeState, foldTo, openQuestions, statusOf } from "../src/fold.ts";
import { coversCall } from "../src/fold-patterns.ts";
import type { AnyFact } from "../src/generated/events.ts";
import type { View } from "../src/view.ts";

interface Recording {
  name: string;
  facts: AnyFact[];
  states: unknown[];
}

const folder = process.env.TREADLE_RECORDINGS ?? "";
const recordings: Recording[] = (folder ? readdirSync(folder) : [])
  .filter((name) => name.endsWith(".json"))
  .map((name) => ({ name, ...(JSON.parse(readFileSync(join(folder, name), "utf8")) as Omit<Recording, "name">) }));

function detailsOf(name: string): string {
  return join(folder, "details", name);
}

function fold(facts: readonly AnyFact[]): View {
  const view = createView();
  for (const fact of facts) applyFact(view, fact);
  return view;
}

/** Everything in a view, to compare two of them. */
function list(view: View): unknown {
  return { ...view, calls: [...view.calls], notes: [...view.notes], inner: { ...view.inner, changed: [...view.inner.changed] } };
}

/** Numbers in [0, 1) that are the same in every run. */
function createRandom(seed: number): () => number {
  let state = seed;
  return () => {
    state = (state * 1_664_525 + 1_013_904_223) % 4_294_967_296;
    return state / 4_294_967_296;
  };
}

test("there are recordings to compare with", { skip: !folder }, () => {
  assert.ok(recordings.length >= 30, `${recordings.length} recordings in ${folder}`);
});

for (const { name, facts, states } of recordings) {
  test(`${name}: equals the server at every position, fact by fact`, () => {
    const view = createView();
    facts.forEach((fact, place) => {
      applyFact(view, fact);
      assert.deepEqual(describeState(view), states[place], `after ${fact.type} at ${fact.seq}`);
    });
  });

  test(`${name}: estimates tokens and waiting time as the server does`, { skip: !existsSync(detailsOf(name)) }, () => {
    const view = createView();
    const details = JSON.parse(readFileSync(detailsOf(name), "utf8")) as unknown[];
    facts.forEach((fact, place) => {
      applyFact(view, fact);
      const { run, tokens, isHeld, runs, calls } = view;
      const own = [tokens, isHeld, runs, run?.waited ?? null, run?.limits.turns ?? null, [...calls.keys()]];
      assert.deepEqual(own, details[place], `after ${fact.type} at ${fact.seq}`);
    });
  });

  test(`${name}: equals the server at every position, from the start`, () => {
    for (let place = facts.length - 1; place >= 0; place--) {
      assert.deepEqual(describeState(foldTo(facts, facts[place]?.seq ?? 0)), states[place]);
    }
    assert.equal(foldTo(facts, 0).seq, 0);
  });

  test(`${name}: a copy goes on by itself`, () => {
    for (let place = 0; place < facts.length; place++) {
      const view = fold(facts.slice(0, place));
      const before = structuredClone(list(view));
      const copy = copyView(view);
      for (const fact of facts.slice(place)) applyFact(copy, fact);
      assert.deepEqual(list(view), before, `changed by a copy at ${place}`);
      assert.deepEqual(list(copy), list(fold(facts)));
    }
  });

  test(`${name}: keys of items are unique, and revisions grow`, () => {
    const view = createView();
    for (const fact of facts) {
      const before = new Map(view.items.map((item) => [item, JSON.stringify({ ...item, callIds: 0 })]));
      const revisions = new Map(view.items.map((item) => [item, item.rev]));
      applyFact(view, fact);
      assert.equal(new Set(view.items.map((item) => item.seq)).size, view.items.length);
      for (const item of view.items) {
        const isSame = !before.has(item) || JSON.stringify({ ...item, callIds: 0 }) === before.get(item);
        assert.ok(isSame || item.rev > (revisions.get(item) ?? 0), `${item.kind} ${item.seq} at ${fact.seq}`);
      }
    }
  });

  test(`${name}: strange logs never throw, and repeated facts change nothing`, () => {
    const random = createRandom(facts.length);
    for (let round = 0; round < 40; round++) {
      const some = facts.filter(() => random() > 0.3);
      const shuffled = some.map((fact) => ({ fact, order: random() })).sort((a, b) => a.order - b.order);
      const strange = shuffled.map(({ fact }, place) => ({ ...fact, seq: place + 1 }));
      describeState(fold(strange));
      const unknown = { type: "from_the_future", what: { ever: 1 }, seq: 0, at: 0 } as unknown as AnyFact;
      const repeated = facts.flatMap((fact, place) => [fact, facts[Math.floor(random() * (place + 1))] ?? fact, { ...unknown, seq: fact.seq }]);
      assert.deepEqual(describeState(fold(repeated)), states.at(-1));
    }
  });
}

test("patterns cover the same calls as on the server", { skip: !existsSync(detailsOf("patterns.json")) }, () => {
  const rows = JSON.parse(readFileSync(detailsOf("patterns.json"), "utf8")) as [string, string, Record<string, unknown>, boolean][];
  assert.ok(rows.some((row) => row[3]) && rows.some((row) => !row[3]));
  for (const [pattern, tool, args, covers] of rows) {
    assert.equal(coversCall(pattern, tool, args), covers, `${pattern} and ${tool} ${JSON.stringify(args)}`);
  }
});

test("a pattern that is hard to match takes no long time", () => {
  assert.equal(coversCall(`shell(${"*a".repeat(40)}b)`, "shell", { text: "a".repeat(2000) }), false);
});

test("settings wait for the end of a run, but the access counts at once", () => {
  const facts = [
    { type: "session_created", session_id: "s", agent: { name: "writer" }, model: "one", grants: [{ tier: "plan" }] },
    { type: "run_started", run_id: "r", limits: { turns: 3 } },
    { type: "session_configured", model: "two", access: "sandbox" },
    { type: "run_finished", run_id: "r", reason: "answered" },
  ].map((fact, place) => ({ ...fact, seq: place + 1, at: place }) as unknown as AnyFact);
  const states = facts.map((_, place) => foldTo(facts, place + 1));
  assert.deepEqual(states.map((view) => view.access), ["plan", "plan", "sandbox", "sandbox"]);
  assert.deepEqual(states.map((view) => view.model), ["one", "one", "one", "two"]);
  assert.equal(states[1]?.run?.limits.turns, 3);
});

test("kept views on the way give the same as folding from the start", () => {
  const facts = writeLongSession(7000);
  const random = createRandom(1);
  for (let round = 0; round < 40; round++) {
    const seq = 1 + Math.floor(random() * facts.length);
    assert.deepEqual(list(foldTo(facts, seq)), list(fold(facts.slice(0, seq))), `at ${seq}`);
  }
  assert.equal(foldTo(facts, 1e9).seq, facts.length);
});

test("a position of a long session needs few of its facts", () => {
  let reads = 0;
  const facts = new Proxy(writeLongSession(40_000), {
    get: (all, key, self) => {
      if (typeof key === "string" && /^\d+$/.test(key)) reads++;
      return Reflect.get(all, key, self) as unknown;
    },
  });
  foldTo(facts, facts.length);
  const random = createRandom(2);
  for (let round = 0; round < 60; round++) {
    const seq = 1 + Math.floor(random() * facts.length);
    reads = 0;
    assert.equal(foldTo(facts, seq).seq, seq);
    assert.ok(reads < 2200, `${reads} facts read for position ${seq}`);
  }
});

test("an old log without the fields of today folds", () => {
  const old = [
    { type: "session_created", session_id: "s", seq: 1, at: 1 },
    { type: "message_received", id: "m", parts: [{ type: "text", text: "hi" }], seq: 2, at: 2 },
    { type: "run_started", run_id: "r", seq: 3, at: 3 },
    { type: "turn_started", turn: 1, messages: ["m"], seq: 4, at: 4 },
    { type: "model_replied", calls: [{ id: "c", tool: "shell" }], seq: 5, at: 5 },
    { type: "approval_requested", call_id: "c", tool: "shell", safety: "caution", why: "", seq: 6, at: 6 },
  ] as unknown as AnyFact[];
  const view = fold(old);
  assert.equal(statusOf(view), "waiting");
  assert.deepEqual(openQuestions(view).map((question) => question.callId), ["c"]);
  assert.equal(view.run?.limits.turns, 50);
  assert.equal(view.agent, "agent");
});

/** A session of turns with a call each, and a run of 50 turns after each message. */
function writeLongSession(length: number): AnyFact[] {
  const facts: AnyFact[] = [];
  const add = (fact: Record<string, unknown>): void => {
    facts.push({ ...fact, seq: facts.length + 1, at: 1000 + facts.length } as unknown as AnyFact);
  };
  add({ type: "session_created", session_id: "long", agent: {} });
  for (let number = 0; facts.length < length; number++) {
    const isFirst = number % 50 === 0;
    if (isFirst) {
      add({ type: "message_received", id: `m${number}`, parts: [{ type: "text", text: `Task ${number}` }] });
      add({ type: "run_started", run_id: `r${number}`, limits: {} });
    }
    add({ type: "turn_started", turn: (number % 50) + 1, ...(isFirst ? { messages: [`m${number}`] } : {}) });
    const usage = { input_tokens: 100 + number, output_tokens: 20, cost: 0.001 };
    add({ type: "model_replied", text: `Step ${number}`, calls: [{ id: `c${number}`, tool: "shell", arguments: "{}" }], usage });
    add({ type: "call_started", call_id: `c${number}`, tool: "shell" });
    add({ type: "files_kept", call_id: `c${number}`, files: [{ path: `src/file-${number % 300}.ts` }] });
    add({ type: "call_finished", call_id: `c${number}`, tool: "shell", status: "ok", output: "line\n".repeat(200) });
    if (number % 50 === 49) add({ type: "run_finished", run_id: `r${number}`, reason: "answered", answer: "done" });
  }
  return facts.slice(0, length);
}
