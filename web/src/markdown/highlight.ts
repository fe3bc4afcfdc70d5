/** Highlighting of code. This module is loaded when code appears for the first time. */

import hljs from "highlight.js/lib/core";
import type { Emitter } from "highlight.js";
import bash from "highlight.js/lib/languages/bash";
import cpp from "highlight.js/lib/languages/cpp";
import diff from "highlight.js/lib/languages/diff";
import go from "highlight.js/lib/languages/go";
import ini from "highlight.js/lib/languages/ini";
import java from "highlight.js/lib/languages/java";
import javascript from "highlight.js/lib/languages/javascript";
import json from "highlight.js/lib/languages/json";
import python from "highlight.js/lib/languages/python";
import rust from "highlight.js/lib/languages/rust";
import sql from "highlight.js/lib/languages/sql";
import typescript from "highlight.js/lib/languages/typescript";
import xml from "highlight.js/lib/languages/xml";
import yaml from "highlight.js/lib/languages/yaml";
import type { Ink, Piece } from "./code-lines.ts";
import css from "./css-language.ts";

const LANGUAGES = { bash, cpp, css, diff, go, ini, java, javascript, json, python, rust, sql, typescript, xml, yaml };

const INKS: Record<string, Ink> = {
  keyword: "k", built_in: "k", type: "k", selector: "k", "selector-tag": "k", name: "k", section: "k", tag: "k", meta: "k",
  string: "s", regexp: "s", addition: "s", symbol: "s", link: "s", "template-variable": "s",
  number: "num", literal: "num", bullet: "num", variable: "num",
  comment: "cm", quote: "cm", deletion: "cm", doctag: "cm",
};

/** Collects pieces of text with one of four inks. It makes no HTML. */
class PieceEmitter implements Emitter {
  readonly pieces: Piece[] = [];
  private readonly inks: Ink[] = [""];

  addText(text: string): void {
    const ink = this.inks.at(-1) ?? "";
    const last = this.pieces.at(-1);
    if (last?.ink === ink) last.text += text;
    else this.pieces.push({ text, ink });
  }

  startScope(name: string): void {
    this.inks.push(INKS[name] ?? INKS[name.split(".")[0] ?? ""] ?? this.inks.at(-1) ?? "");
  }

  endScope(): void {
    this.inks.pop();
  }

  openNode(name: string): void {
    this.startScope(name);
  }

  closeNode(): void {
    this.endScope();
  }

  __addSublanguage(emitter: Emitter): void {
    if (emitter instanceof PieceEmitter) this.pieces.push(...emitter.pieces);
  }

  finalize(): void {
    this.inks.length = 1;
  }

  toHTML(): string {
    return "";
  }
}

hljs.configure({ __emitter: PieceEmitter });
for (const [name, language] of Object.entries(LANGUAGES)) hljs.registerLanguage(name, language);
hljs.registerAliases(["c", "h"], { languageName: "cpp" });

/** The pieces of a code with their inks, or null if the language is not known. */
export function highlight(text: string, language: string): Piece[] | null {
  if (!hljs.getLanguage(language)) return null;
  const { _emitter: emitter } = hljs.highlight(text, { language, ignoreIllegals: true });
  return emitter instanceof PieceEmitter ? emitter.pieces : null;
}
