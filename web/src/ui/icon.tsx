/** An icon of the sprite in index.html. Text beside it says the same, so it is hidden from screen readers. */

export type IconName =
  | "ask" | "at" | "back" | "ban" | "book" | "box" | "check" | "chev" | "chip" | "clip" | "clock" | "cols" | "copy" | "dots"
  | "down" | "fail" | "file" | "filter" | "fork" | "half" | "help" | "inbox" | "key" | "logo" | "moon" | "note" | "off" | "out"
  | "pen" | "phone" | "pin" | "plan" | "play" | "plug" | "plus" | "rew" | "ring" | "run" | "search" | "shield" | "sliders"
  | "stop" | "term" | "think" | "time" | "up" | "x";

interface IconProps {
  name: IconName;
  /** Further classes, such as "sm", "acc" or "m3". */
  class?: string;
}

export function Icon({ name, class: more = "" }: IconProps) {
  const turns = name === "run" ? " spin" : "";
  return (
    <svg class={`i${turns}${more ? ` ${more}` : ""}`} aria-hidden="true">
      <use href={`#${name}`} />
    </svg>
  );
}
