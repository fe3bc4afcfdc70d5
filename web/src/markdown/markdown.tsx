/** Markdown as the model wrote it. Its tokens become elements one by one, so no text is ever read as HTML. */

import type { Tokens } from "marked";
import type { ComponentChildren } from "preact";
import { useMemo, useRef } from "preact/hooks";
import { BlockReader, readBlocks, type Token } from "./blocks.ts";
import { Code } from "./code.tsx";
import { checkLink, decodeEntities, isEmbeddedImage } from "./links.ts";

interface MarkdownProps {
  text: string;
  /** The text still grows: only its last block is read again. */
  live?: boolean;
}

export function Markdown({ text, live = false }: MarkdownProps) {
  const reader = useRef<BlockReader | null>(null);
  const blocks = useMemo(() => {
    if (!live) return readBlocks(text);
    reader.current ??= new BlockReader();
    return reader.current.read(text);
  }, [text, live]);
  return (
    <>
      {blocks.map((block, at) => (
        <Block key={at} token={block} isOpen={live && at === blocks.length - 1} />
      ))}
    </>
  );
}

/** A block is drawn again only if its text has changed. */
function Block({ token, isOpen }: { token: Token; isOpen: boolean }) {
  return useMemo(() => drawBlock(token as Tokens.Generic, isOpen), [token.type, token.raw, isOpen]);
}

function drawBlock(token: Tokens.Generic, isOpen: boolean): ComponentChildren {
  switch (token.type) {
    case "paragraph":
      return <p>{drawInline(token.tokens)}</p>;
    case "text":
      return token.tokens ? drawInline(token.tokens) : decodeEntities(String(token.text));
    case "heading":
      return <h2 class={`d${token.depth}`}>{drawInline(token.tokens)}</h2>;
    case "code":
      return <Code text={String(token.text)} lang={String(token.lang ?? "")} live={isOpen} />;
    case "blockquote":
      return <blockquote>{drawBlocks(token.tokens, isOpen)}</blockquote>;
    case "list":
      return drawList(token as Tokens.List, isOpen);
    case "table":
      return drawTable(token as Tokens.Table);
    case "hr":
      return <hr />;
    case "html":
      return <p class="raw">{token.raw.trimEnd()}</p>;
    case "space":
    case "def":
      return null;
    default:
      return drawInline([token]);
  }
}

function drawBlocks(tokens: Token[] | undefined, isOpen: boolean): ComponentChildren {
  return tokens?.map((token, at) => <Block key={at} token={token} isOpen={isOpen && at === tokens.length - 1} />);
}

function drawList(list: Tokens.List, isOpen: boolean) {
  const items = list.items.map((item, at) => <ListItem key={at} item={item} isOpen={isOpen && at === list.items.length - 1} />);
  if (!list.ordered) return <ul>{items}</ul>;
  return <ol start={typeof list.start === "number" ? list.start : 1}>{items}</ol>;
}

function ListItem({ item, isOpen }: { item: Tokens.ListItem; isOpen: boolean }) {
  return useMemo(
    () => (
      <li class={item.task ? "task" : undefined}>
        {item.task && <TaskMark isDone={item.checked ?? false} />}
        {drawBlocks(item.tokens.filter((token) => token.type !== "checkbox"), isOpen)}
      </li>
    ),
    [item.raw, isOpen],
  );
}

function TaskMark({ isDone }: { isDone: boolean }) {
  return (
    <>
      <span class={isDone ? "tick on" : "tick"} aria-hidden="true" />
      <span class="sr">{isDone ? "done: " : "to do: "}</span>
    </>
  );
}

function drawTable(table: Tokens.Table) {
  const className = (at: number) => (table.align[at] === "right" ? "n" : table.align[at] === "center" ? "mid" : undefined);
  return (
    <div class="wide" tabIndex={0} role="region" aria-label="Table">
      <table>
        <thead>
          <tr>
            {table.header.map((cell, at) => (
              <th key={at} class={className(at)}>
                {drawInline(cell.tokens)}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {table.rows.map((row, line) => (
            <tr key={line}>
              {row.map((cell, at) => (
                <td key={at} class={className(at)}>
                  {drawInline(cell.tokens)}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function drawInline(tokens: Token[] | undefined): ComponentChildren {
  return tokens?.map((token) => drawSpan(token as Tokens.Generic));
}

function drawSpan(token: Tokens.Generic): ComponentChildren {
  switch (token.type) {
    case "text":
      return token.tokens ? drawInline(token.tokens) : decodeEntities(String(token.text));
    case "escape":
      return String(token.text);
    case "strong":
      return <strong>{drawInline(token.tokens)}</strong>;
    case "em":
      return <em>{drawInline(token.tokens)}</em>;
    case "del":
      return <del>{drawInline(token.tokens)}</del>;
    case "codespan":
      return <code>{String(token.text)}</code>;
    case "br":
      return <br />;
    case "link":
      return <Link token={token as Tokens.Link} />;
    case "image":
      return <Image token={token as Tokens.Image} />;
    case "checkbox":
      return null;
    default:
      return token.raw;
  }
}

function Link({ token }: { token: Tokens.Link }) {
  const address = checkLink(token.href);
  const text = drawInline(token.tokens);
  if (!address) return <span title={`Not a link for this page: ${token.href}`}>{text}</span>;
  return (
    <a class="acc" href={address} title={address} target="_blank" rel="noopener noreferrer">
      {text}
    </a>
  );
}

/** An image from outside is never loaded: it is shown as a link. */
function Image({ token }: { token: Tokens.Image }) {
  const alt = decodeEntities(token.text);
  if (isEmbeddedImage(token.href)) return <img src={token.href} alt={alt} />;
  const address = checkLink(token.href);
  const text = `Image: ${alt || address || token.href}`;
  if (!address) return <span>{text}</span>;
  return (
    <a class="acc" href={address} title={address} target="_blank" rel="noopener noreferrer">
      {text}
    </a>
  );
}
