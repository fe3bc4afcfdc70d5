/** Patterns on calls, such as `shell(git *)`: whether one covers a call. The same as `covers_call` of the server. */

type Arguments = Readonly<Record<string, unknown>>;
type Kind = "path" | "command" | "text";
type Test = (character: string) => boolean;

/** A position in a glob: which characters lead to the next one, which stay here, and which jumps are free. */
interface Position {
  step: Test | null;
  stay: Test | null;
  jumps: readonly number[];
}

interface GlobStyle {
  run: Test;
  one: Test;
  tail: Position[];
}

const PATH_ARGUMENT = /(^|_)(path|file|filename|folder|directory|dir)s?$/;
const COMMAND_ARGUMENT = /(^|_)(command|cmd|script)s?$/;
const SHELL_OPERATORS = /[;&|<>`\n\r]|\$\(|\$\{/;
const GLOB_PIECES = /(\[[*?]\]|\*\*\/?|\*|\?)/;

const isAny: Test = () => true;
const isNoSlash: Test = (character) => character !== "/";
const isSlash: Test = (character) => character === "/";
const isBlank: Test = (character) => character === " " || character === "\t" || character === "\n";

/** Make a pattern hold for every version of its tool: `git__log@1f3a(x)` is `git__log(x)`. */
export function unpinVersion(pattern: string): string {
  const [name, bracket] = splitAt(pattern, "(");
  return splitAt(name, "@")[0] + (bracket === null ? "" : `(${bracket}`);
}

/** Whether a pattern is about the whole call. */
export function coversCall(pattern: string, tool: string, args: Arguments): boolean {
  const [name, bracket] = splitAt(pattern, "(");
  if (!matches(name, name.includes("/") ? { run: isAny, one: isNoSlash, tail: [] } : TEXT, tool)) return false;
  if (bracket === null) return true;
  const inside = bracket.endsWith(")") ? bracket.slice(0, -1) : bracket;
  const [named, rest] = splitAt(inside, "=");
  const isNamed = rest !== null && Object.hasOwn(args, named);
  const argument = isNamed ? named : (Object.keys(args)[0] ?? "");
  const glob = isNamed ? rest : inside;
  if (!glob) return true;
  const value = argument ? args[argument] : null;
  const values: unknown[] = Array.isArray(value) ? value : [value];
  return values.length > 0 && values.every((one) => coversValue(glob, one, findKind(argument)));
}

function coversValue(glob: string, value: unknown, kind: Kind): boolean {
  if (typeof value !== "string" && typeof value !== "number" && typeof value !== "boolean") return false;
  const text = typeof value === "boolean" ? (value ? "True" : "False") : String(value);
  if (kind === "path") return coversPath(normalizePath(glob), normalizePath(text));
  if (kind === "command" && glob !== "*" && glob !== "**") {
    if (glob === text.replace(/[*?]/g, "[$&]")) return true;
    return !SHELL_OPERATORS.test(text) && matchesText(glob, text.replace(/[ \t]+/g, " ").trim());
  }
  return matchesText(glob, text);
}

/** `src/**` also matches `src`, and a path outside of the workspace needs a pattern outside of it. */
function coversPath(glob: string, path: string): boolean {
  if (findRoot(path) !== findRoot(glob)) return false;
  const isTree = glob.endsWith("/**");
  const style: GlobStyle = { run: isNoSlash, one: isNoSlash, tail: isTree ? listTail(isSlash) : [] };
  return matches(isTree ? glob.slice(0, -3) : glob, style, path);
}

/** `git *` matches git with or without more words. */
function matchesText(glob: string, text: string): boolean {
  return glob.endsWith(" *") ? matches(glob.slice(0, -2), { ...TEXT, tail: listTail(isBlank) }, text) : matches(glob, TEXT, text);
}

const TEXT: GlobStyle = { run: isAny, one: isAny, tail: [] };

function listTail(start: Test): Position[] {
  return [
    { step: null, stay: null, jumps: [1, 3] },
    { step: start, stay: null, jumps: [] },
    { step: null, stay: isAny, jumps: [1] },
  ];
}

function compile(glob: string, { run, one, tail }: GlobStyle): Position[] {
  const positions: Position[] = [];
  for (const piece of glob.split(GLOB_PIECES)) {
    if (piece === "*" || piece === "**") positions.push({ step: null, stay: piece === "*" ? run : isAny, jumps: [1] });
    else if (piece === "**/") {
      positions.push({ step: null, stay: null, jumps: [1, 2] }, { step: isSlash, stay: isAny, jumps: [] });
    } else if (piece === "?") positions.push({ step: one, stay: null, jumps: [] });
    else {
      const text = piece === "[*]" || piece === "[?]" ? piece.charAt(1) : piece;
      for (const wanted of text) positions.push({ step: (character) => character === wanted, stay: null, jumps: [] });
    }
  }
  return [...positions, ...tail];
}

/** Follow all positions at once, so that no pattern takes more than linear time. */
function matches(glob: string, style: GlobStyle, text: string): boolean {
  const positions = compile(glob, style);
  let reached = addJumps(new Set([0]), positions);
  for (const character of text) {
    const next = new Set<number>();
    for (const place of reached) {
      if (positions[place]?.step?.(character)) next.add(place + 1);
      if (positions[place]?.stay?.(character)) next.add(place);
    }
    if (next.size === 0) return false;
    reached = addJumps(next, positions);
  }
  return reached.has(positions.length);
}

/** Add all positions that can be reached without another character. A Set is walked with what is added meanwhile. */
function addJumps(reached: Set<number>, positions: readonly Position[]): Set<number> {
  for (const place of reached) for (const length of positions[place]?.jumps ?? []) reached.add(place + length);
  return reached;
}

function findKind(argument: string): Kind {
  if (PATH_ARGUMENT.test(argument)) return "path";
  return COMMAND_ARGUMENT.test(argument) ? "command" : "text";
}

/** Write a path in one form, as the server's `normalize_path` does. */
export function normalizePath(path: string): string {
  const isAbsolute = path.startsWith("/");
  const parts: string[] = [];
  for (const part of path.split("/")) {
    if (part === "" || part === ".") continue;
    if (part !== ".." || (!isAbsolute && (parts.length === 0 || parts.at(-1) === ".."))) parts.push(part);
    else parts.pop();
  }
  return (isAbsolute ? "/" : "") + parts.join("/") || ".";
}

/** Where a path starts: in the workspace (empty), at the root, or so many folders above. */
function findRoot(path: string): string {
  if (path.startsWith("/")) return "/";
  return path.split("/").filter((piece) => piece === "..").join("");
}

/** The text before a mark and after it. The second is null without the mark. */
function splitAt(text: string, mark: string): [string, string | null] {
  const place = text.indexOf(mark);
  return place < 0 ? [text, null] : [text.slice(0, place), text.slice(place + mark.length)];
}
