/** Everything that decides an approval: the whole command or arguments, its parts, the diff, where and why. */

import { Fragment, type ComponentChildren } from "preact";
import type { PartView, PreviewView } from "../generated/api.ts";
import { describeCharacter, listHidden, nameCharacter } from "../ui/hidden-text.ts";
import { Icon } from "../ui/icon.tsx";
import { VisibleText } from "../ui/visible-text.tsx";
import { UnifiedDiff } from "../workspace/diff.tsx";
import { getCommand, type Ask } from "./ask.ts";

interface ApprovalBodyProps {
  ask: Ask;
  preview: PreviewView | null;
  /** What the agent said before it asked. Empty when that is shown elsewhere. */
  words: string;
}

/** Arguments that the diff of a call shows in full. */
const SHOWN_BY_DIFF: Record<string, string[]> = { write_file: ["content"], edit_file: ["old", "new"], apply_patch: ["patch"] };

export function ApprovalBody({ ask, preview, words }: ApprovalBodyProps) {
  const command = getCommand(ask);
  const diff = preview?.diff ?? "";
  const inDiff = diff ? (SHOWN_BY_DIFF[ask.tool] ?? []) : [];
  const others = Object.entries(ask.arguments).filter(([name]) => name !== "command" && !inDiff.includes(name));
  const isPart = ask.during !== "";
  return (
    <>
      {command && !isPart ? (
        <Arguments values={others.filter(([name]) => name !== "folder")}>
          <div class="cmd">
            <VisibleText text={command} keepWords />
          </div>
        </Arguments>
      ) : (
        <Arguments values={isPart ? Object.entries(ask.arguments) : others}>
          <div class="mono">
            <VisibleText text={ask.tool} />
          </div>
        </Arguments>
      )}
      {preview && preview.parts.length > 1 && <Parts parts={preview.parts} why={ask.why} />}
      {diff && (
        <div class="q-diff">
          <UnifiedDiff text={diff} />
        </div>
      )}
      <HiddenWarning ask={ask} diff={diff} />
      <Reasons ask={ask} preview={preview} words={words} />
    </>
  );
}

function Arguments({ values, children }: { values: [string, unknown][]; children: ComponentChildren }) {
  return (
    <div class="cmdbox">
      {children}
      {values.length > 0 && (
        <dl class="args">
          {values.map(([name, value]) => (
            <Fragment key={name}>
              <dt>
                <VisibleText text={name} />
              </dt>
              <dd>
                <VisibleText text={typeof value === "string" ? value : JSON.stringify(value, null, 1)} />
              </dd>
            </Fragment>
          ))}
        </dl>
      )}
    </div>
  );
}

/** A reason that is that of the whole question is not said again. */
function Parts({ parts, why }: { parts: PartView[]; why: string }) {
  return (
    <ul class="parts" aria-label="Parts of the command">
      {parts.map((part, place) => (
        <li key={place}>
          <code>
            <VisibleText text={part.text} />
          </code>
          <Verdict part={part} />
          <span class="m2 t12">{part.why !== why && <VisibleText text={part.why} />}</span>
        </li>
      ))}
    </ul>
  );
}

function Verdict({ part }: { part: PartView }) {
  if (part.verdict === "allowed") {
    return (
      <span class="tag good">
        <Icon name="check" class="sm" />
        Allowed
      </span>
    );
  }
  if (part.verdict === "denied" || part.safety === "destructive") {
    return (
      <span class="tag bad">
        <Icon name={part.verdict === "denied" ? "ban" : "fail"} class="sm" />
        {part.verdict === "denied" ? "Denied" : "Destructive"}
      </span>
    );
  }
  return (
    <span class="tag attn">
      <Icon name="ask" class="sm" />
      Asks
    </span>
  );
}

/** Names the characters that do not show, each with what it does. */
function HiddenWarning({ ask, diff }: { ask: Ask; diff: string }) {
  const found = listHidden([ask.tool, ...listTexts(ask.arguments), diff]);
  if (found.length === 0) return null;
  const [first = "", ...more] = found;
  return (
    <div class="note q-warn" role="note">
      <Icon name="fail" class="sm" />
      <span>
        <b>{more.length === 0 ? "Hidden character." : "Hidden characters."}</b> {nameCharacter(first)} {describeCharacter(first)}
        {more.length > 0 && `, and there are ${more.map(nameCharacter).slice(0, 8).join(", ")}`}. The text may not say what it seems to.
      </span>
    </div>
  );
}

function listTexts(value: unknown): string[] {
  if (typeof value === "string") return [value];
  if (Array.isArray(value)) return value.flatMap(listTexts);
  return value && typeof value === "object" ? Object.entries(value).flatMap(([name, one]) => [name, ...listTexts(one)]) : [];
}

function Reasons({ ask, preview, words }: { ask: Ask; preview: PreviewView | null; words: string }) {
  const folder = preview?.folder ?? (typeof ask.arguments.folder === "string" ? ask.arguments.folder : "");
  const network = preview?.network ?? "";
  if (!ask.why && !folder && !words && !ask.isOnce) return null;
  return (
    <dl class="why">
      {ask.why && (
        <>
          <dt>Why asked</dt>
          <dd>
            <VisibleText text={ask.why} />
          </dd>
        </>
      )}
      {folder && (
        <>
          <dt>In folder</dt>
          <dd>
            <code title={folder}>
              <VisibleText text={folder} />
            </code>
            {network && `, network ${network}`}
          </dd>
        </>
      )}
      {ask.isOnce && ask.digest && (
        <>
          <dt>Digest</dt>
          <dd>
            <code>{ask.digest.slice(0, 8).replace(/(.{4})/, "$1 ")}</code>, the answer holds for exactly this
          </dd>
        </>
      )}
      {words && (
        <>
          <dt>Agent says</dt>
          <dd>
            “<VisibleText text={words} />”
          </dd>
        </>
      )}
    </dl>
  );
}
