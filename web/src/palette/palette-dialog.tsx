/** The dialog of the palette: what fits to what is typed, and the keys to choose it. */

import { useEffect, useRef, useState } from "preact/hooks";
import { searchText, type Found } from "../list/list-state.ts";
import { Marked } from "../list/marked.tsx";
import { Icon } from "../ui/icon.tsx";
import { openModal } from "../ui/modal.ts";
import { listChoices, type Choice, type ChoiceGroup } from "./choices.ts";
import { KeyCaps } from "./keys-dialog.tsx";

const TYPING_PAUSE = 150;
const MOST_PASSAGES = 6;

/** Passages for what is typed, some time after the last key. */
function usePassages(typed: string): Found[] {
  const [found, setFound] = useState<Found[]>([]);
  useEffect(() => {
    if (typed.trim().length < 2) {
      setFound([]);
      return;
    }
    let isWanted = true;
    const timer = setTimeout(async () => {
      const result = await searchText(typed);
      if (isWanted) setFound(result.found.filter((one) => one.snippet).slice(0, MOST_PASSAGES));
    }, TYPING_PAUSE);
    return () => {
      isWanted = false;
      clearTimeout(timer);
    };
  }, [typed]);
  return found;
}

interface PaletteDialogProps {
  onClose: () => void;
  onKeys: () => void;
}

export function PaletteDialog({ onClose, onKeys }: PaletteDialogProps) {
  const dialog = useRef<HTMLDialogElement>(null);
  const [typed, setTyped] = useState("");
  const [chosen, setChosen] = useState(0);
  const groups = listChoices(typed.trim(), usePassages(typed), () => setTimeout(onKeys));
  const all = groups.flatMap((group) => group.choices);
  const selected = all[Math.min(chosen, all.length - 1)];
  useEffect(() => (dialog.current ? openModal(dialog.current) : undefined), []);
  useEffect(() => {
    dialog.current?.querySelector('[aria-selected="true"]')?.scrollIntoView({ block: "nearest" });
  }, [selected?.key]);
  const choose = (choice: Choice, isNewTab = false): void => {
    onClose();
    // The palette gives the focus back first, so that what the command opens can keep it.
    if (isNewTab && choice.href) window.open(choice.href, "_blank", "noopener");
    else setTimeout(choice.run);
  };
  const onKeyDown = (event: KeyboardEvent): void => {
    const last = all.length - 1;
    if (event.key === "ArrowDown") setChosen(chosen >= last ? 0 : chosen + 1);
    else if (event.key === "ArrowUp") setChosen(chosen <= 0 ? last : Math.min(chosen, last) - 1);
    else if (event.key === "Enter" && selected && !event.isComposing) choose(selected, event.ctrlKey || event.metaKey);
    else if (event.key === "k" && (event.ctrlKey || event.metaKey)) onClose();
    else return;
    event.preventDefault();
  };
  return (
    <dialog
      ref={dialog}
      class="pal"
      aria-label="Commands"
      onCancel={(event) => (event.preventDefault(), onClose())}
      onClick={(event) => event.target === dialog.current && onClose()}
    >
      <div class="pal-box">
        <div class="pal-i">
          <Icon name="search" class="m3" />
          <input
            type="text"
            role="combobox"
            aria-label="Find a command, a session or a passage"
            aria-expanded="true"
            aria-controls="palette-list"
            aria-autocomplete="list"
            aria-activedescendant={selected ? makeId(selected) : undefined}
            placeholder="Find a command, a session or a passage"
            autocomplete="off"
            spellcheck={false}
            value={typed}
            onInput={(event) => (setTyped(event.currentTarget.value), setChosen(0))}
            onKeyDown={onKeyDown}
          />
          <kbd>Esc</kbd>
        </div>
        <Results groups={groups} selected={selected} onChoose={choose} />
        <div class="pal-f" aria-hidden="true">
          <span>
            <kbd>↑</kbd> <kbd>↓</kbd> choose
          </span>
          <span>
            <kbd>Enter</kbd> do
          </span>
          <span>
            <kbd>Ctrl</kbd> <kbd>Enter</kbd> in a new tab
          </span>
        </div>
      </div>
    </dialog>
  );
}

interface ResultsProps {
  groups: ChoiceGroup[];
  selected: Choice | undefined;
  onChoose: (choice: Choice, isNewTab: boolean) => void;
}

function Results({ groups, selected, onChoose }: ResultsProps) {
  return (
    <>
      {groups.length === 0 && (
        <p class="pal-none" role="status">
          Nothing fits.
        </p>
      )}
      <div class="pal-list" id="palette-list" role="listbox" aria-label="Results" tabIndex={-1}>
        {groups.map((group) => (
          <div key={group.label} role="group" aria-label={group.label}>
            <div class="pal-head" role="presentation">
              {group.label}
            </div>
            {group.choices.map((choice) => (
              <div
                key={choice.key}
                id={makeId(choice)}
                class="pal-row"
                role="option"
                aria-selected={choice === selected}
                onClick={(event) => onChoose(choice, event.ctrlKey || event.metaKey)}
              >
                <Icon name={choice.icon} class={choice.ink} />
                <span class="cut">{choice.isPassage ? <Marked text={choice.label} /> : choice.label}</span>
                <span class="m3 cut">{choice.hint}</span>
                <span class="sp" />
                {choice.keys && <KeyCaps keys={choice.keys} />}
              </div>
            ))}
          </div>
        ))}
      </div>
    </>
  );
}

function makeId(choice: Choice): string {
  return `choice-${choice.key.replace(/[^\w-]/g, "-")}`;
}
