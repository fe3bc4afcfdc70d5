// EventSource: the events of a session. The client leaves in the middle and rejoins with the last id.
import assert from "node:assert/strict";
import { EventSource } from "eventsource";

const base = process.env.TREADLE_URL;
const headers = { authorization: `Bearer ${process.env.TREADLE_TOKEN}`, "content-type": "application/json" };
const send = async (path, body) =>
  (await fetch(base + path, { method: "POST", headers, body: JSON.stringify(body) })).json();
const follow = (path, isLast) =>
  new Promise((resolve, reject) => {
    const seen = [];
    const source = new EventSource(base + path, {
      fetch: (url, init) => fetch(url, { ...init, headers: { ...init.headers, authorization: headers.authorization } }),
    });
    const read = (event) => {
      if (!event.lastEventId || !event.data) return;
      seen.push([event.lastEventId, JSON.parse(event.data)]);
      if (isLast(seen.at(-1)[1])) {
        source.close();
        resolve(seen);
      }
    };
    source.onerror = (error) => reject(new Error(error.message ?? "the stream broke"));
    for (const name of ["message", "session_created", "message_received", "run_started", "turn_started"])
      source.addEventListener(name, read);
    for (const name of ["model_replied", "run_finished"]) source.addEventListener(name, read);
  });

const session = await send("/v1/sessions", {});
await send(`/v1/sessions/${session.id}/messages`, { content: "Hello" });
const path = `/v1/sessions/${session.id}/events`;
const some = await follow(path, (event) => event.type === "turn_started");
const rest = await follow(`${path}?after=${some.at(-1)[0]}`, (event) => event.type === "run_finished");
const ids = [...some, ...rest].map(([id]) => Number(id));
assert.deepEqual(ids, [...ids].sort((a, b) => a - b));
assert.equal(new Set(ids).size, ids.length);
assert.equal(rest.at(-1)[1].answer, "I have read 1 messages.");
console.log("eventsource: ok");
