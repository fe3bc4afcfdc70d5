/** Streams: how bytes become events, and what happens after a break, a refusal, silence and sleep. */

import assert from "node:assert/strict";
import { afterEach, beforeEach, mock, test } from "node:test";
import { EventParser, openStream, type ServerEvent } from "../src/event-stream.ts";
import { FakeServer, settle, showPage, startPage } from "./fake-page.ts";

let server: FakeServer;
let heard: { events: ServerEvent[]; opened: number; breaks: number; rests: number; refused: number[] };
let stop: () => void = () => undefined;

function open(restsWhenHidden = false): void {
  stop = openStream({
    restsWhenHidden,
    onRest: () => heard.rests++,
    url: (lastId) => `/events?after=${lastId}`,
    onEvents: (events) => heard.events.push(...events),
    onOpen: () => heard.opened++,
    onBreak: () => heard.breaks++,
    onRefused: (error) => heard.refused.push(error.status),
  });
}

beforeEach(() => {
  mock.timers.enable({ apis: ["setTimeout", "Date"] });
  server = startPage();
  heard = { events: [], opened: 0, breaks: 0, rests: 0, refused: [] };
});

afterEach(() => {
  stop();
  mock.timers.reset();
});

test("events are whole, however the bytes are split", () => {
  const text = ": ping\n\nid: 7\ndata: {\"a\":1}\n\ndata: one\ndata:two\n\nevent: session\ndata: {}\n\nid: 8\ndata\n\n";
  const expected = [
    { id: "7", event: "", data: '{"a":1}' },
    { id: "", event: "", data: "one\ntwo" },
    { id: "", event: "session", data: "{}" },
    { id: "8", event: "", data: "" },
  ];
  for (let size = 1; size <= text.length; size++) {
    const parser = new EventParser();
    const found: ServerEvent[] = [];
    for (let start = 0; start < text.length; start += size) found.push(...parser.feed(text.slice(start, start + size)));
    assert.deepEqual(found, expected, `in pieces of ${size}`);
  }
});

test("characters of several bytes are whole, however the bytes are split", async () => {
  open();
  const connection = await server.next();
  for (const byte of new TextEncoder().encode("id: 1\ndata: Zürich 🧵\n\n")) connection.sendBytes(Uint8Array.of(byte));
  await settle();
  assert.deepEqual(heard.events, [{ id: "1", event: "", data: "Zürich 🧵" }]);
});

test("after a break the next connection names the last event", async () => {
  open();
  const first = await server.next();
  assert.equal(first.headers["last-event-id"], undefined);
  first.send("id: 3\ndata: a\n\ndata: delta\n\nid: 4\ndata: half");
  await settle();
  first.end();
  await settle();
  assert.deepEqual([heard.opened, heard.breaks], [1, 1]);
  mock.timers.tick(1000);
  const second = await server.next();
  assert.equal(second.headers["last-event-id"], "3");
  assert.equal(second.url, "/events?after=3");
  second.send("id: 4\ndata: whole\n\n");
  await settle();
  assert.deepEqual(heard.events.map((event) => event.data), ["a", "delta", "whole"]);
});

test("a refusal ends the stream, but a busy or broken server is asked again", async () => {
  open();
  for (const status of [500, 503, 429]) {
    (await server.next()).refuse(status);
    await settle();
    mock.timers.tick(15_000);
  }
  const last = await server.next();
  assert.deepEqual([heard.breaks, heard.refused], [3, []]);
  last.refuse(404);
  await settle();
  mock.timers.tick(60_000);
  await settle();
  assert.deepEqual([heard.breaks, heard.refused], [3, [404]]);
  assert.equal(server.asked, 4);
});

test("each wait is longer than the one before, up to a limit", async () => {
  open();
  const waits: number[] = [];
  for (let round = 0; round < 8; round++) {
    (await server.next()).fail();
    await settle();
    let waited = 0;
    for (const asked = server.asked; server.asked === asked; waited += 50) {
      mock.timers.tick(50);
      await settle();
    }
    waits.push(waited);
  }
  assert.ok((waits[0] ?? 0) <= 400 && (waits[3] ?? 0) >= 1000 && (waits[7] ?? 0) >= 7000, waits.join(" "));
  assert.ok(Math.max(...waits) <= 12_600, waits.join(" "));
});

test("a silent connection is given up", async () => {
  open();
  const connection = await server.next();
  connection.send(": ping\n\n");
  await settle();
  mock.timers.tick(39_000);
  await settle();
  assert.equal(heard.breaks, 0);
  mock.timers.tick(2000);
  await settle();
  assert.deepEqual([heard.breaks, connection.isAborted], [1, true]);
});

test("a page that is seen again does not wait, and does not trust a silent connection", async () => {
  open();
  (await server.next()).fail();
  await settle();
  showPage();
  const second = await server.next();
  mock.timers.setTime(Date.now() + 5000);
  showPage();
  await settle();
  assert.equal(second.isAborted, false);
  mock.timers.setTime(Date.now() + 3_600_000);
  showPage();
  await settle();
  assert.equal(second.isAborted, true);
});

test("a hidden page rests after a while, and goes on where it was when it is seen", async () => {
  open(true);
  const first = await server.next();
  first.send("id: 5\ndata: a\n\n");
  await settle();
  showPage(false);
  mock.timers.tick(9000);
  showPage();
  mock.timers.tick(9000);
  assert.equal(first.isAborted, false, "a short look elsewhere is no rest");
  showPage(false);
  mock.timers.tick(11_000);
  await settle();
  mock.timers.tick(600_000);
  await settle();
  assert.deepEqual([first.isAborted, heard.rests, heard.breaks, server.asked], [true, 1, 0, 1]);
  showPage();
  const second = await server.next();
  assert.equal(second.headers["last-event-id"], "5");
});

test("a hidden page that rests does not ask a server that is gone", async () => {
  open(true);
  (await server.next()).fail();
  await settle();
  showPage(false);
  mock.timers.tick(10_000);
  await settle();
  const { asked } = server;
  mock.timers.tick(600_000);
  await settle();
  assert.ok(server.asked - asked <= 1, `${server.asked - asked} requests while resting`);
  showPage();
});

test("a stopped stream is silent", async () => {
  open();
  const connection = await server.next();
  stop();
  connection.send("id: 1\ndata: late\n\n");
  await settle();
  mock.timers.tick(60_000);
  await settle();
  assert.deepEqual([heard.events, heard.breaks, server.asked], [[], 0, 1]);
});
