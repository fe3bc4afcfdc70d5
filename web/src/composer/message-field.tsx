/** The field for a message. It grows with its text, completes files and commands, and takes pasted files. */

import { useLayoutEffect, useRef, useState, type MutableRef } from "preact/hooks";
import { Icon } from "../ui/icon.tsx";
import { plural } from "../ui/format.ts";
import { VisibleText } from "../ui/visible-text.tsx";
import { listPasted } from "./attached-files.tsx";
import { leaveKeyboardRoom } from "./keyboard-room.ts";
import { useCompletion, type Completion, type SuggestionSource } from "./use-completion.ts";

interface MessageFieldProps {
  field: MutableRef<HTMLTextAreaElement | null>;
  label: string;
  placeholder: string;
  text: string;
  source: SuggestionSource;
  onText: (text: string) => void;
  onFiles: (files: File[]) => void;
  /** Keys that the completion did not use. */
  onKeyDown?: (event: KeyboardEvent) => void;
  class?: string;
  /** Suggestions stand below the field instead of above it. */
  isBelow?: boolean;
}

const LIST = "suggestions";

export function MessageField(props: MessageFieldProps) {
  const { field, label, placeholder, text, source, onText, onFiles, onKeyDown, class: more = "", isBelow = false } = props;
  const completion = useCompletion(field, source, text, onText);
  const { suggestions, active } = completion;
  const isOpen = suggestions.length > 0;
  useHeight(field, text);
  useLayoutEffect(leaveKeyboardRoom, []);
  return (
    <>
      <textarea
        ref={field}
        class={`in ${more}`}
        data-composer
        rows={1}
        aria-label={label}
        aria-autocomplete="list"
        aria-haspopup="listbox"
        {...(isOpen ? { "aria-controls": LIST, "aria-activedescendant": `${LIST}-${active}` } : {})}
        placeholder={placeholder}
        value={text}
        enterkeyhint="send"
        onInput={(event) => (onText(event.currentTarget.value), completion.update())}
        onKeyDown={(event) => {
          if (isOfInputMethod(event)) return;
          if (completion.onKeyDown(event)) event.preventDefault();
          else onKeyDown?.(event);
        }}
        onKeyUp={(event) => MOVES.has(event.key) && completion.update()}
        onClick={completion.update}
        onBlur={completion.hide}
        onPaste={(event) => {
          const files = listPasted(event);
          if (files.length === 0) return;
          event.preventDefault();
          onFiles(files);
        }}
      />
      {isOpen && <SuggestionList completion={completion} isBelow={isBelow} />}
      <span class="sr" role="status">
        {isOpen && plural(suggestions.length, "suggestion")}
      </span>
    </>
  );
}

/** Keys that choose among characters are no keys of the page. Safari says so by the number only. */
export function isOfInputMethod(event: KeyboardEvent): boolean {
  return event.isComposing || event.keyCode === 229;
}

const MOVES = new Set(["ArrowLeft", "ArrowRight", "Home", "End"]);

function SuggestionList({ completion, isBelow }: { completion: Completion; isBelow: boolean }) {
  const { suggestions, active, choose } = completion;
  const list = useRef<HTMLUListElement>(null);
  useLayoutEffect(() => list.current?.children[active]?.scrollIntoView({ block: "nearest" }), [active]);
  return (
    <ul ref={list} id={LIST} class={isBelow ? "pop suggestions below" : "pop suggestions"} role="listbox" aria-label="Suggestions">
      {suggestions.map((one, at) => (
        <li
          key={one.key}
          id={`${LIST}-${at}`}
          role="option"
          aria-selected={at === active}
          // The field keeps the focus.
          onPointerDown={(event) => event.preventDefault()}
          onClick={() => choose(at)}
        >
          <Icon name={one.icon} class="sm m3" />
          <span class="suggestion-name">
            <VisibleText text={one.label} />
          </span>
          <span class="m3 cut">
            <VisibleText text={one.hint} />
          </span>
        </li>
      ))}
    </ul>
  );
}

const GROWS_ITSELF = CSS.supports("field-sizing", "content");

/** For browsers that do not size a field by its text. */
function useHeight(field: MutableRef<HTMLTextAreaElement | null>, text: string): void {
  const [width, setWidth] = useState(0);
  useLayoutEffect(() => {
    const element = field.current;
    if (GROWS_ITSELF || !element) return undefined;
    const observer = new ResizeObserver(() => setWidth(element.clientWidth));
    observer.observe(element);
    return () => observer.disconnect();
  }, []);
  useLayoutEffect(() => {
    const element = field.current;
    if (GROWS_ITSELF || !element) return;
    element.style.height = "auto";
    element.style.height = `${element.scrollHeight}px`;
  }, [text, width]);
}

/** Names a file of the workspace: writes the mark that opens the suggestions. */
export function MentionButton({ field }: { field: MutableRef<HTMLTextAreaElement | null> }) {
  const mention = (): void => {
    const element = field.current;
    if (!element) return;
    const { value, selectionStart: start, selectionEnd: end } = element;
    const mark = start === 0 || /\s$/.test(value.slice(0, start)) ? "@" : " @";
    element.focus();
    element.setRangeText(mark, start, end, "end");
    element.dispatchEvent(new Event("input", { bubbles: true }));
  };
  return (
    <button type="button" class="b bare ico" aria-label="Name a file" title="Name a file of the workspace" onClick={mention}>
      <Icon name="at" />
    </button>
  );
}
