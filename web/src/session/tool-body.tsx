/** What a card shows when it is open: the whole command or its arguments, then the diff, the output or the images. */

import { useState } from "preact/hooks";
import type { ImagePart, Part } from "../generated/events.ts";
import { Code } from "../markdown/code.tsx";
import { isEmbeddedImage } from "../markdown/links.ts";
import { readOutcome } from "../questions/outcome.ts";
import { formatCount, plural } from "../ui/format.ts";
import { lazy } from "../ui/lazy.tsx";
import { VisibleText } from "../ui/visible-text.tsx";
import { UnifiedDiff } from "../workspace/diff.tsx";
import type { CallStatus, CallView } from "../view.ts";
import { useConversation } from "./context.ts";
import { PlanList } from "./plan-list.tsx";
import { countLines, findDiff, readArguments, readPlan, SHELLS, stripAnsi, takeLastLines, type Arguments } from "./tool-text.ts";

const LongOutput = lazy(async () => (await import("../workspace/artifact.tsx")).LongOutput);

const TAIL = 5;
/** More lines than these are shown by a button. */
const SHOWN_LINES = 60;
const FAILED_LINES = 24;
const LONGEST_TEXT = 12_000;
const EXIT_LINE = /\n?\s*[[(]?exit code -?\d+[\])]?\.?\s*$/;

export function ToolBody({ call, status }: { call: CallView; status: CallStatus }) {
  const args = readArguments(call);
  const { tool } = call.call;
  const plan = readPlan(tool, args);
  const diff = status === "ok" ? findDiff(call.finished?.output ?? "") : "";
  return (
    <div class="tc-b">
      {plan ? <PlanList steps={plan} /> : <ArgumentsText tool={tool} args={args} raw={call.call.arguments ?? ""} isShort={diff !== ""} />}
      <Answer call={call} />
      {status === "interrupted" && <p class="note">The server ended while it ran. It was not run again.</p>}
      {status === "running" ? <LiveTail call={call} /> : diff ? <UnifiedDiff text={diff} path={String(args.path ?? "")} /> : !plan && status !== "interrupted" && <Output call={call} status={status} />}
      <Images parts={call.finished?.parts ?? []} />
    </div>
  );
}

/** A person's reason or answers. Who it was stands on the line of the card. */
function Answer({ call }: { call: CallView }) {
  const text = readOutcome(call)?.text;
  if (!text) return null;
  return (
    <p class="note">
      <span>
        “<VisibleText text={text} />”
      </span>
    </p>
  );
}

/** The whole command, or every argument. A diff shows the texts of an edit already. */
function ArgumentsText({ tool, args, raw, isShort }: { tool: string; args: Arguments; raw: string; isShort: boolean }) {
  const names = listWritten(args, raw);
  if (SHELLS.has(tool) && typeof args.command === "string") {
    const others = names.filter((name) => name !== "command");
    return (
      <>
        <div class="cmd">
          <VisibleText text={args.command} keepWords />
        </div>
        <Pairs args={args} names={others} />
      </>
    );
  }
  if (names.length === 0) return raw && raw !== "{}" ? <pre class="out"><VisibleText text={raw} /></pre> : null;
  return <Pairs args={args} names={isShort ? names.filter((name) => !LONG_ARGUMENTS.has(name)) : names} />;
}

/** The arguments that the model wrote. Those that have their default are left out. */
function listWritten(args: Arguments, raw: string): string[] {
  const names = Object.keys(args);
  const written = names.filter((name) => raw.includes(`"${name}"`));
  return written.length > 0 ? written : names;
}

const LONG_ARGUMENTS = new Set(["content", "old", "new", "patch"]);

function Pairs({ args, names }: { args: Arguments; names: readonly string[] }) {
  if (names.length === 0) return null;
  return (
    <dl class="args">
      {names.map((name) => (
        <Pair key={name} name={name} value={args[name]} lang={LONG_ARGUMENTS.has(name) ? String(args.path ?? "").split(".").at(-1) ?? "" : ""} />
      ))}
    </dl>
  );
}

function Pair({ name, value, lang }: { name: string; value: unknown; lang: string }) {
  const text = typeof value === "string" ? value : JSON.stringify(value, null, 1);
  return (
    <>
      <dt>{name}</dt>
      <dd>{text.includes("\n") ? <LongText text={text} lang={lang} /> : <VisibleText text={text} />}</dd>
    </>
  );
}

/** A text of several lines, the first of them at first. */
function LongText({ text, lang }: { text: string; lang: string }) {
  const [isWhole, setWhole] = useState(false);
  const lines = countLines(text);
  const isCut = !isWhole && lines > SHOWN_LINES;
  return (
    <>
      <Code text={isCut ? text.split("\n", SHOWN_LINES).join("\n") : text} lang={lang} />
      {isCut && (
        <button type="button" class="b bare acc" onClick={() => setWhole(true)}>
          Show all {lines} lines
        </button>
      )}
    </>
  );
}

/** The last lines of what a running call writes. */
function LiveTail({ call }: { call: CallView }) {
  const { source } = useConversation();
  source.liveVersion.value;
  const { id } = call.call;
  const text = source.live?.outputs.get(id);
  const progress = source.live?.progress.get(id);
  if (!text && !progress) return null;
  return (
    <div class="out">
      {progress && <div class="m3">{describeProgress(progress)}</div>}
      {text && <VisibleText text={takeLastLines(text, TAIL)} />}
      {text && <span class="caret" />}
    </div>
  );
}

function describeProgress({ message, done, total }: { message: string; done: number | null; total: number | null }): string {
  const count = done === null ? "" : total === null ? `${done}` : `${done} of ${total}`;
  return [message, count].filter(Boolean).join(", ");
}

function Output({ call, status }: { call: CallView; status: CallStatus }) {
  const { source } = useConversation();
  const [isWhole, setWhole] = useState(false);
  const { finished } = call;
  if (!finished) return null;
  const text = stripAnsi(finished.output ?? "").trimEnd();
  if (status === "denied" || status === "refused") return <Denial call={call} text={text} />;
  const artifact = finished.truncation?.artifact ?? "";
  if (isWhole) {
    return <LongOutput sessionId={source.sessionId} callId={finished.call_id} artifactId={artifact} text={text} />;
  }
  const isFailed = status === "error" || status === "timed_out";
  const shown = cutOutput(isFailed ? text.replace(EXIT_LINE, "") : text, isFailed);
  const isCut = shown.hidden > 0 || artifact !== "";
  return (
    <>
      {shown.text.trim() ? (
        <div class="out" tabIndex={0}>
          <VisibleText text={shown.text} />
        </div>
      ) : (
        <p class="note">It wrote nothing.</p>
      )}
      {isCut && (
        <p class="note">
          <span>{artifact ? `${formatCount(text.length + (finished.truncation?.dropped ?? 0))} characters in all.` : `${plural(countLines(text), "line")} in all.`}</span>
          <button type="button" class="acc" onClick={() => setWhole(true)}>
            Open the whole output
          </button>
        </p>
      )}
    </>
  );
}

/** Of a failed call the last lines, of others the first ones. */
function cutOutput(text: string, isFailed: boolean): { text: string; hidden: number } {
  const short = isFailed ? text.slice(-LONGEST_TEXT) : text.slice(0, LONGEST_TEXT);
  const lines = short.split("\n");
  const count = isFailed ? FAILED_LINES : SHOWN_LINES;
  const kept = isFailed ? lines.slice(-count) : lines.slice(0, count);
  return { text: kept.join("\n"), hidden: lines.length - kept.length + (text.length - short.length) };
}

/** A person's reason, or the sentence of the rule. */
function Denial({ call, text }: { call: CallView; text: string }) {
  if (call.answer?.comment) return null;
  return (
    <p class="note">
      <VisibleText text={text || "It was not run."} />
    </p>
  );
}

/** Images in the result. Those with an address are not loaded. */
function Images({ parts }: { parts: readonly Part[] }) {
  const images = parts.filter((part): part is ImagePart => part.type === "image");
  return (
    <>
      {images.map((image, at) => {
        const address = `data:${image.media_type ?? ""};base64,${image.data ?? ""}`;
        if (!image.data || !isEmbeddedImage(address)) return <p key={at} class="note">An image of type {image.media_type || "unknown"}.</p>;
        return <img key={at} class="tc-image" src={address} alt={`Image ${at + 1} of the result`} />;
      })}
    </>
  );
}
