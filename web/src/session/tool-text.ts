/** How a call is told in one line: its argument, what came of it, and a chain of calls in words. */

import { callStatus } from "../fold.ts";
import type { CallStatus, CallView } from "../view.ts";
import type { IconName } from "../ui/icon.tsx";
import { plural } from "../ui/format.ts";

export type Arguments = Record<string, unknown>;

const MAIN = ["command", "pattern", "query", "path", "url", "expression", "question", "name", "task", "text"];
const EXIT = /exit code (-?\d+)/;
const NEW_FILE = /^Made .* \(\d+ bytes, (\d+) lines?\)\./;
export const SHELLS = new Set(["shell", "bash"]);
const ICONS: Record<string, IconName> = {
  read_file: "file", edit_file: "pen", write_file: "pen", apply_patch: "pen", search_files: "search", find_files: "search",
  list_files: "search", fetch_url: "out", web_search: "search", todo: "plan", delegate: "help", ask_user: "ask",
  remember: "note", recall: "note", forget: "note", use_skill: "book", git_remote: "fork",
};

/** The arguments of a call: those that ran, those that were asked about, or as the model wrote them. */
export function readArguments(call: CallView): Arguments {
  const known = call.started?.arguments ?? call.asked?.arguments;
  if (known) return known;
  try {
    const parsed: unknown = JSON.parse(call.call.arguments || "{}");
    return parsed !== null && typeof parsed === "object" && !Array.isArray(parsed) ? (parsed as Arguments) : {};
  } catch {
    return {};
  }
}

/** The main argument on one line. What cannot be read as JSON is shown as it is. */
export function describeArgument(call: CallView): string {
  const args = readArguments(call);
  const plan = readPlan(call.call.tool, args);
  if (plan) {
    const now = plan.find((step) => step.status === "doing");
    const done = `${plan.filter((step) => step.status === "done").length} of ${plan.length} done`;
    return now ? `${done}, now: ${now.text}` : done;
  }
  const name = MAIN.find((one) => args[one]) ?? Object.keys(args)[0];
  if (name === undefined) return call.call.arguments === "{}" ? "" : (call.call.arguments ?? "");
  const value = args[name];
  return typeof value === "string" ? value : JSON.stringify(value);
}

export function readPlan(tool: string, args: Arguments): { text: string; status: string }[] | null {
  if (tool !== "todo" || !Array.isArray(args.items)) return null;
  return args.items.map((item: unknown) => {
    if (typeof item === "string") return { text: item, status: "pending" };
    const step = (item ?? {}) as { text?: unknown; status?: unknown };
    return { text: String(step.text ?? ""), status: String(step.status ?? "pending") };
  });
}

/** The icon of the line: the state if it is special, otherwise what the tool does. */
export function chooseIcon(call: CallView): IconName {
  const status = callStatus(call);
  switch (status) {
    case "running":
    case "allowed":
      return "run";
    case "asked":
      return "ask";
    case "queued":
      return "ring";
    case "error":
    case "timed_out":
      return "fail";
    case "denied":
    case "refused":
      return "ban";
    case "cancelled":
      return "stop";
    case "interrupted":
      return "clock";
    case "ok":
      return ICONS[call.call.tool] ?? "check";
  }
}

export interface Fact {
  text: string;
  isBad?: boolean;
  added?: number;
  removed?: number;
}

/** What came of a call, shortly. */
export function describeResult(call: CallView): Fact | null {
  const status = callStatus(call);
  const output = call.finished?.output ?? "";
  switch (status) {
    case "ok":
      return describeSuccess(call.call.tool, output, call);
    case "error": {
      const code = EXIT.exec(output)?.[1];
      return { text: code ? `Failed, exit ${code}` : "Failed", isBad: true };
    }
    case "timed_out":
      return { text: "Took too long", isBad: true };
    case "denied":
      return { text: describeDenial(call) };
    case "refused":
      return { text: "Refused" };
    case "cancelled":
      return { text: "Stopped" };
    case "interrupted":
      return { text: "Unknown, may have run" };
    case "asked":
      return { text: "Needs you" };
    case "queued":
      return { text: "Waits" };
    case "allowed":
    case "running":
      return null;
  }
}

function describeDenial(call: CallView): string {
  if (call.answer?.decision !== "deny") return "Denied";
  return call.answer.by === "expiry" ? "Nobody answered in time" : "Denied";
}

function describeSuccess(tool: string, output: string, call: CallView): Fact | null {
  const diff = findDiff(output);
  if (diff) return { text: "", ...countChanges(diff) };
  const made = NEW_FILE.exec(output);
  if (made) return { text: "", added: Number(made[1]), removed: 0 };
  if (tool === "todo" || SHELLS.has(tool) || !output) return null;
  const total = countLines(output) + Math.round((call.finished?.truncation?.dropped ?? 0) / 60);
  return tool === "read_file" || total > 3 ? { text: plural(total, "line") } : null;
}

export function countLines(text: string): number {
  let count = 1;
  for (let at = text.indexOf("\n"); at >= 0 && at < text.length - 1; at = text.indexOf("\n", at + 1)) count++;
  return count;
}

/** The unified diff at the end of an output. Empty if there is none. */
export function findDiff(output: string): string {
  const found = /^(?:--- .*\n\+\+\+ .*\n|diff --git |@@ -\d+(?:,\d+)? \+\d+)/m.exec(output);
  return found ? output.slice(found.index) : "";
}

export function countChanges(diff: string): { added: number; removed: number } {
  let [added, removed] = [0, 0];
  for (const line of diff.split("\n")) {
    if (line.startsWith("+") && !line.startsWith("+++ ")) added++;
    else if (line.startsWith("-") && !line.startsWith("--- ")) removed++;
  }
  return { added, removed };
}

/** Colours and cursor moves of a terminal are left out. A line that was overwritten keeps its last text. */
export function stripAnsi(text: string): string {
  // eslint-disable-next-line no-control-regex
  const plain = text.replace(/\u001b(?:\[[0-?]*[ -/]*[@-~]|\][^\u0007\u001b]*(?:\u0007|\u001b\\)?|[@-Z\\-_])/g, "");
  if (!plain.includes("\r")) return plain;
  return plain.replace(/\r+\n/g, "\n").replace(/^.*\r(?=.)/gm, "").replaceAll("\r", "");
}

/** The last lines of a text. */
export function takeLastLines(text: string, count: number): string {
  const lines = stripAnsi(text).trimEnd().split("\n");
  return lines.slice(-count).join("\n");
}

const KINDS: [tools: readonly string[], one: string, many: (count: number) => string][] = [
  [["read_file", "read_output"], "read 1 file", (count) => `read ${count} files`],
  [["search_files", "find_files", "list_files"], "searched once", (count) => (count === 2 ? "searched twice" : `searched ${count} times`)],
  [["edit_file", "write_file", "apply_patch"], "1 edit", (count) => `${count} edits`],
  [["shell", "bash"], "ran 1 command", (count) => `ran ${count} commands`],
  [["fetch_url", "web_search"], "read 1 page", (count) => `read ${count} pages`],
  [["todo"], "updated the plan", () => "updated the plan"],
];

/** "read 4 files, searched twice, ran 1 command" */
export function describeChain(calls: readonly CallView[]): string {
  const counts = new Map<number | string, number>();
  for (const { call } of calls) {
    const kind = KINDS.findIndex(([tools]) => tools.includes(call.tool));
    const key = kind < 0 ? call.tool : kind;
    counts.set(key, (counts.get(key) ?? 0) + 1);
  }
  const told = [...counts].map(([key, count]) => {
    if (typeof key === "string") return count > 1 ? `${key} ${count} times` : key;
    const [, one, many] = KINDS[key] ?? [[], "", String];
    return count === 1 ? one : many(count);
  });
  return told.join(", ");
}

/** "3 edits" or "7 calls". */
export function nameChain(calls: readonly CallView[]): string {
  const isOnly = (tools: readonly string[]): boolean => calls.every((one) => tools.includes(one.call.tool));
  if (isOnly(["edit_file", "write_file", "apply_patch"])) return plural(calls.length, "edit");
  if (isOnly(["shell", "bash"])) return plural(calls.length, "command");
  return plural(calls.length, "call");
}

/** How long a call took, in seconds. */
export function measureDuration(call: CallView): number {
  return call.finished?.duration ?? (call.started && call.finished ? call.finished.at - call.started.at : 0);
}

/** Whether the card opens by itself. */
export function opensByItself(status: CallStatus): boolean {
  return ["asked", "running", "error", "timed_out", "denied", "interrupted"].includes(status);
}
