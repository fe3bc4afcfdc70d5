// ws: the frames of a session, and its messages as frames, over WebSocket.
import assert from "node:assert/strict";
import WebSocket from "ws";

const base = process.env.TREADLE_URL;
const headers = { authorization: `Bearer ${process.env.TREADLE_TOKEN}` };
const created = await fetch(`${base}/v1/sessions`, {
  method: "POST",
  headers: { ...headers, "content-type": "application/json" },
  body: "{}",
});
const { id } = await created.json();
const talk = (path, hello, isLast) =>
  new Promise((resolve, reject) => {
    const frames = [];
    const socket = new WebSocket(base.replace("http", "ws") + path, { headers });
    socket.on("open", () => hello && socket.send(JSON.stringify(hello)));
    socket.on("error", reject);
    socket.on("message", (data) => {
      frames.push(JSON.parse(data));
      if (isLast(frames.at(-1))) {
        socket.close();
        resolve(frames);
      }
    });
  });

const hello = { type: "user", content: "Please use calculate now." };
const frames = await talk(`/v1/sessions/${id}/stream`, hello, (frame) => frame.type === "done");
assert.equal(frames.at(-1).reply, "The tool said: 42");
assert.ok(frames.some((frame) => frame.type === "tool_start" && frame.name === "calculate"));
const isAnswer = (frame) => frame.type === "message_complete" && frame.content === "The tool said: 42";
const messages = await talk(`/v1/ws?session=${id}`, null, isAnswer);
assert.ok(messages.every((frame) => frame.session_id === id && frame.chat_id === id));
const result = messages.find((frame) => frame.type === "tool_result");
assert.equal(result.output, "42");
console.log("ws: ok");
