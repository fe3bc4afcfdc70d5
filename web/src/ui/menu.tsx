/** Menus: a button that opens one, or one at a place on the page. Arrow keys choose, Enter does, Esc closes. */

import { useLayoutEffect, useRef, useState } from "preact/hooks";
import type { ComponentChildren } from "preact";
import { Icon, type IconName } from "./icon.tsx";
import { openModal } from "./modal.ts";

export interface MenuItem {
  label: string;
  run: () => void;
  icon?: IconName;
  /** A second line, such as why it cannot be used. */
  hint?: string;
  /** The key that does the same. */
  keys?: string;
  isDanger?: boolean;
  isDisabled?: boolean;
  /** One of several to choose from. True marks the one in use. */
  isChecked?: boolean;
  /** A heading above the item. */
  heading?: string;
}

interface MenuProps {
  /** What the button is for. It is the name of the menu too. */
  label: string;
  items: MenuItem[];
  /** What the button shows. Without it, three dots. */
  children?: ComponentChildren;
  class?: string;
}

export function Menu({ label, items, children, class: more = "b bare ico" }: MenuProps) {
  const button = useRef<HTMLButtonElement>(null);
  const [place, setPlace] = useState<MenuPlace | null>(null);
  return (
    <>
      <button
        ref={button}
        type="button"
        class={more}
        aria-haspopup="menu"
        aria-expanded={place !== null}
        {...(children ? {} : { "aria-label": label, title: label })}
        onClick={() => button.current && setPlace(placeBelow(button.current))}
      >
        {children ?? <Icon name="dots" />}
      </button>
      {place && <MenuList label={label} items={items} place={place} onClose={() => setPlace(null)} />}
    </>
  );
}

/** Where a menu opens: below `bottom` or above `top`, with one of its sides at `left` or `right`. */
export interface MenuPlace {
  left: number;
  right: number;
  top: number;
  bottom: number;
}

function placeBelow(element: Element): MenuPlace {
  const { left, right, top, bottom } = element.getBoundingClientRect();
  return { left, right, top: top - 4, bottom: bottom + 4 };
}

interface MenuListProps {
  label: string;
  items: MenuItem[];
  place: MenuPlace;
  onClose: () => void;
}

export function MenuList({ label, items, place, onClose }: MenuListProps) {
  const dialog = useRef<HTMLDialogElement>(null);
  useLayoutEffect(() => {
    const element = dialog.current;
    if (!element) return undefined;
    const close = openModal(element);
    placeMenu(element, place);
    const checked = element.querySelector<HTMLElement>('[aria-checked="true"]');
    (checked ?? element.querySelector<HTMLElement>(".menu-item:not([disabled])"))?.focus();
    return close;
  }, [place]);
  const choose = (item: MenuItem): void => {
    onClose();
    // The menu gives the focus back first, so that what the item opens can keep it.
    queueMicrotask(item.run);
  };
  return (
    <dialog
      ref={dialog}
      class="menu"
      aria-label={label}
      onCancel={(event) => (event.preventDefault(), onClose())}
      onClick={(event) => event.target === dialog.current && onClose()}
      onKeyDown={(event) => moveFocus(event, dialog.current, onClose)}
    >
      <div role="menu" aria-label={label}>
        {items.map((item) => (
          <MenuLine key={item.label} item={item} onChoose={() => choose(item)} />
        ))}
      </div>
    </dialog>
  );
}

function MenuLine({ item, onChoose }: { item: MenuItem; onChoose: () => void }) {
  const isChoice = item.isChecked !== undefined;
  const icon = isChoice ? (item.isChecked ? "check" : null) : (item.icon ?? null);
  return (
    <>
      {item.heading && <div class="menu-head" role="presentation">{item.heading}</div>}
      <button
        type="button"
        class={item.isDanger ? "menu-item danger" : "menu-item"}
        role={isChoice ? "menuitemradio" : "menuitem"}
        {...(isChoice ? { "aria-checked": item.isChecked } : {})}
        disabled={item.isDisabled}
        tabIndex={-1}
        onClick={onChoose}
      >
        <span class="menu-icon">{icon && <Icon name={icon} class="sm" />}</span>
        <span class="menu-text">
          <span>{item.label}</span>
          {item.hint && <span class="m3 t12">{item.hint}</span>}
        </span>
        {item.keys && <kbd>{item.keys}</kbd>}
      </button>
    </>
  );
}

/** Below the place if there is room, and inside of the page. On a phone the style sheet puts it at the bottom. */
function placeMenu(element: HTMLElement, place: MenuPlace): void {
  const { width, height } = element.getBoundingClientRect();
  const gap = 8;
  const fitsRight = place.left + width + gap <= innerWidth;
  const left = fitsRight ? place.left : Math.max(gap, place.right - width);
  const fitsBelow = place.bottom + height + gap <= innerHeight;
  const top = fitsBelow ? place.bottom : Math.max(gap, place.top - height);
  element.style.setProperty("--menu-left", `${left}px`);
  element.style.setProperty("--menu-top", `${top}px`);
}

function moveFocus(event: KeyboardEvent, dialog: HTMLElement | null, onClose: () => void): void {
  const items = [...(dialog?.querySelectorAll<HTMLElement>(".menu-item:not([disabled])") ?? [])];
  const at = items.indexOf(document.activeElement as HTMLElement);
  const steps: Record<string, number> = {
    ArrowDown: (at + 1) % items.length,
    ArrowUp: (at - 1 + items.length) % items.length,
    Home: 0,
    End: items.length - 1,
  };
  if (event.key === "Tab") onClose();
  let next = steps[event.key];
  if (next === undefined && event.key.length === 1 && event.key !== " ") {
    const rotated = [...items.slice(at + 1), ...items.slice(0, at + 1)];
    const found = rotated.find((one) => one.textContent?.trim().toLowerCase().startsWith(event.key.toLowerCase()));
    next = found ? items.indexOf(found) : undefined;
  }
  if (next === undefined) return;
  event.preventDefault();
  items[next]?.focus();
}
