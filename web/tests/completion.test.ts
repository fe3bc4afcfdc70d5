/** What the message field completes. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { complete, filterCommands, findWord, suggestFile, type Suggestion } from "../src/composer/completion.ts";

/** Complete the word before the bar with a file. The bar in the answer is the caret. */
function completeFile(shown: string, path: string): string {
  const caret = shown.indexOf("|");
  const text = shown.replace("|", "");
  const word = findWord(text, caret);
  assert.ok(word);
  const done = complete(text, word, suggestFile(path));
  return `${done.text.slice(0, done.caret)}|${done.text.slice(done.caret)}`;
}

test("a word after @ names a file, and an address does not", () => {
  assert.deepEqual(findWord("see @src/ma", 11), { kind: "file", typed: "src/ma", start: 4, end: 11 });
  assert.deepEqual(findWord('see @"my no', 11), { kind: "file", typed: "my no", start: 4, end: 11 });
  assert.equal(findWord("see @", 5)?.typed, "");
  assert.equal(findWord("me@example.org", 14), null);
  assert.equal(findWord("see @a and", 10), null);
  assert.equal(findWord('see @"a b" and', 14), null);
});

test("a slash begins a command only at the start of the message", () => {
  assert.deepEqual(findWord("/com", 4), { kind: "command", typed: "com", start: 0, end: 4 });
  assert.equal(findWord("/compact now", 12), null);
  assert.equal(findWord("a /com", 6), null);
  assert.equal(findWord("/etc/hosts", 10), null);
});

test("a completed file is followed by one space, and a folder stays open", () => {
  assert.equal(completeFile("see @ma|", "src/main.ts"), "see @src/main.ts |");
  assert.equal(completeFile("see @ma| and go", "src/main.ts"), "see @src/main.ts |and go");
  assert.equal(completeFile("see @sr|", "src/"), "see @src/|");
  assert.equal(completeFile("see @no|", "my notes.md"), 'see @"my notes.md" |');
  assert.equal(completeFile("see @my|", "my files/"), 'see @"my files/|');
});

test("commands that begin with the letters come first", () => {
  const commands = ["compact", "changes", "recheck"].map((key): Suggestion => ({ key, icon: "term", label: key, hint: "", text: key }));
  assert.deepEqual(filterCommands(commands, "ch").map((one) => one.key), ["changes", "recheck"]);
  assert.equal(filterCommands(commands, "").length, 3);
});
