/** A session that the page follows: nothing is lost or doubled when connections break. */

import assert from "node:assert/strict";
import { afterEach, beforeEach, test } from "node:test";
import { settle, startPage, type Connection, type FakeServer } from "./fake-page.ts";

const server: FakeServer = startPage((url) => url.includes("/events") || url.endsWith("/s1"));
const { OpenSession, openedSession, showSession } = await import("../src/store/open-session.ts");
const { login } = await import("../src/store/login.ts");

type Fields = Record<string, unknown>;

const START: Fields[] = [
  { type: "session_created", session_id: "s1", agent: {} },
  { type: "message_received", id: "m1", parts: [{ type: "text", text: "hi" }] },
  { type: "run_started", run_id: "r1", limits: {} },
  { type: "turn_started", turn: 1, messages: ["m1"] },
];

function write(facts: Fields[], from = 1): string {
  return facts
    .map((fact, place) => `id: ${from + place}\ndata: ${JSON.stringify({ ...fact, seq: from + place, at: from + place })}\n\n`)
    .join("");
}

function writeText(text: string, after = 4): string {
  return `data: ${JSON.stringify({ type: "text_delta", text, after })}\n\n`;
}

let session: InstanceType<typeof OpenSession>;
let connection: Connection;

beforeEach(async () => {
  session = new OpenSession("s1");
  const [about, events] = await Promise.all([server.next(), server.next()]);
  about.reply({ id: "s1", seq: 4 });
  connection = events;
});

afterEach(() => session.close());

test("facts and deltas are applied, and the reply replaces what streamed in", async () => {
  connection.send(write(START));
  connection.send(writeText("Hel") + writeText("lo"));
  await settle();
  assert.equal(session.loading.value, "ready");
  assert.equal(session.view.items.at(-1)?.kind, "message");
  assert.equal(session.live.text, "Hello");
  const { value } = session.version;
  connection.send(write([{ type: "model_replied", text: "Hello." }], 5));
  await settle();
  assert.equal(session.live.text, "");
  assert.equal(session.view.turn?.reply?.text, "Hello.");
  assert.ok(session.version.value > value);
});

test("a connection that breaks in the middle of a reply doubles nothing and loses nothing", async () => {
  connection.send(write(START) + writeText("Hel"));
  await settle();
  connection.send(`${writeText("lo")}id: 5\ndata: {"type":"sess`);
  connection.end();
  const second = await server.next();
  assert.equal(session.isConnected.value, false);
  assert.equal(second.url, "/v1/sessions/s1/events?after=4");
  second.send(writeText("Hello, wor"));
  second.send(write([{ type: "session_renamed", name: "greeting" }], 5) + writeText("ld"));
  await settle();
  assert.equal(session.live.text, "Hello, world");
  assert.equal(session.view.name, "greeting");
  assert.deepEqual(session.facts.map((fact) => fact.seq), [1, 2, 3, 4, 5]);
});

test("facts that come twice count once", async () => {
  connection.send(write(START) + write(START));
  await settle();
  connection.send(write(START.slice(2), 3));
  await settle();
  assert.deepEqual(session.facts.map((fact) => fact.seq), [1, 2, 3, 4]);
});

test("a session is not shown before all that it had is here", async () => {
  connection.send(write(START.slice(0, 2)));
  await settle();
  assert.equal(session.loading.value, "loading");
  connection.send(write(START.slice(2), 3));
  await settle();
  assert.equal(session.loading.value, "ready");
});

test("a session that does not exist is missing", async () => {
  connection.refuse(404);
  await settle();
  assert.equal(session.loading.value, "missing");
  assert.equal(session.error.value, "refused with 404");
});

test("when the login ends, the session is opened again after the next login", async () => {
  login.value = "done";
  showSession("s1");
  const [about, events] = await Promise.all([server.next(), server.next()]);
  about.refuse(401);
  const before = openedSession.value;
  events.refuse(401);
  await settle();
  assert.equal(login.value, "needed");
  showSession("s1");
  assert.notEqual(openedSession.value, before);
  assert.ok(openedSession.value);
  await Promise.all([server.next(), server.next()]);
  showSession(null);
});

test("the past is a copy that the present does not change", async () => {
  connection.send(write(START));
  await settle();
  const past = session.viewAt(3);
  connection.send(write([{ type: "model_replied", text: "Hello." }], 5));
  await settle();
  assert.equal(past.seq, 3);
  assert.equal(past.items.length, 0);
  assert.equal(session.view.items.length, 2);
});
