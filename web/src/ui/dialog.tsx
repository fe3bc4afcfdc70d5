/** A dialog over the page. The browser traps the focus in it, and Esc closes it. The focus goes back at the end. */

import { useEffect, useRef } from "preact/hooks";
import type { ComponentChildren } from "preact";
import { Icon } from "./icon.tsx";
import { openModal } from "./modal.ts";

interface DialogProps {
  title: string;
  onClose: () => void;
  children: ComponentChildren;
  /** The buttons at the end. */
  footer?: ComponentChildren;
  class?: string;
}

export function Dialog({ title, onClose, children, footer, class: more = "" }: DialogProps) {
  const box = useRef<HTMLDialogElement>(null);
  useEffect(() => (box.current ? openModal(box.current) : undefined), []);
  return (
    <dialog
      ref={box}
      class={`dialog ${more}`}
      aria-label={title}
      onCancel={(event) => (event.preventDefault(), onClose())}
      onClick={(event) => event.target === box.current && onClose()}
    >
      <div class="dialog-box">
        <header class="dialog-head">
          <h2>{title}</h2>
          <button type="button" class="b bare ico" aria-label="Close" onClick={onClose}>
            <Icon name="x" />
          </button>
        </header>
        <div class="dialog-body">{children}</div>
        {footer && <footer class="dialog-foot">{footer}</footer>}
      </div>
    </dialog>
  );
}
