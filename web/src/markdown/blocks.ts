/** Splits Markdown into blocks. Of a text that still grows, only the last block is read again. */

import { Lexer, type Token, type TokensList } from "marked";

export type { Token };

const KEPT = 200;
const cache = new Map<string, Token[]>();

/** The blocks of a whole text. The latest texts are kept, because rows come and go while a person scrolls. */
export function readBlocks(text: string): Token[] {
  const known = cache.get(text);
  if (known) {
    cache.delete(text);
    cache.set(text, known);
    return known;
  }
  return keep(text, lex(text));
}

function keep(text: string, blocks: Token[]): Token[] {
  cache.set(text, blocks);
  const [oldest] = cache.keys();
  if (cache.size > KEPT && oldest !== undefined) cache.delete(oldest);
  return blocks;
}

function lex(text: string): Token[] {
  const tokens: TokensList = new Lexer({ gfm: true, breaks: false }).lex(text);
  return tokens.filter((token) => token.type !== "space" && token.type !== "def");
}

/** Reads a text that grows. Blocks before the last one never change. */
export class BlockReader {
  private text = "";
  private closed: Token[] = [];
  private closedLength = 0;

  read(text: string): Token[] {
    if (!text.startsWith(this.text)) this.reset();
    this.text = text;
    const tokens = new Lexer({ gfm: true, breaks: false }).lex(text.slice(this.closedLength));
    const last = tokens.findLastIndex((token) => token.type !== "space");
    const ready = tokens.slice(0, Math.max(0, last));
    for (const token of ready) this.closedLength += token.raw.length;
    const shown = (token: Token): boolean => token.type !== "space" && token.type !== "def";
    this.closed.push(...ready.filter(shown));
    return [...this.closed, ...tokens.slice(Math.max(0, last)).filter(shown)];
  }

  private reset(): void {
    this.closed = [];
    this.closedLength = 0;
  }
}
