/** One line that unfolds: icon, name, text, what came of it, time. */

import type { ComponentChildren } from "preact";
import { Icon, type IconName } from "../ui/icon.tsx";

interface FoldLineProps {
  icon: IconName;
  iconClass?: string;
  name: string;
  /** What follows the name. It is cut at the end of the line. */
  children?: ComponentChildren;
  meta?: ComponentChildren;
  time?: ComponentChildren;
  isOpen: boolean;
  onToggle: () => void;
}

export function FoldLine({ icon, iconClass = "", name, children, meta, time, isOpen, onToggle }: FoldLineProps) {
  return (
    <button type="button" class="tl fold" aria-expanded={isOpen} onClick={onToggle}>
      <Icon name={icon} class={iconClass} />
      <b>{name}</b>
      {children}
      <span class="tl-end">
        {meta}
        {time !== undefined && <time>{time}</time>}
      </span>
    </button>
  );
}
