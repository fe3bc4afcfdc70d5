/** CSS for the highlighter, in a tenth of the size of its own grammar: it knows the shape of CSS, and no list of names. */

import type { HLJSApi, Language } from "highlight.js";

export default function css(hljs: HLJSApi): Language {
  const strings = [hljs.APOS_STRING_MODE, hljs.QUOTE_STRING_MODE];
  const value = {
    begin: /:(?=[^{}]*?(?:[;}]|$))/, end: /(?=[;}])/, relevance: 0,
    contains: [
      hljs.C_BLOCK_COMMENT_MODE, ...strings,
      { scope: "number", begin: /#[\da-f]{3,8}\b|(?<![\w-])-?\d*\.?\d+(?:[a-z]+|%)?/i },
      { scope: "meta", begin: /!important/ },
      { scope: "built_in", begin: /[\w-]+(?=\()/ },
    ],
  };
  const rule = { scope: "keyword", begin: /@[\w-]+/ };
  const name = { scope: "attr", begin: /(?:--)?[a-z][\w-]*(?=\s*:[^{}]*[;}])/i };
  const selector = { scope: "selector", begin: /[.#&]?[a-z][\w-]*|::?[a-z-]+/i, relevance: 0 };
  const outside = [hljs.C_BLOCK_COMMENT_MODE, rule, ...strings];
  return {
    name: "CSS", case_insensitive: true,
    contains: [...outside, { begin: /\{/, end: /\}/, contains: [...outside, name, value, "self", selector] }, selector],
  };
}
