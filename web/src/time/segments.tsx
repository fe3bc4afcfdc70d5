/** A choice of one of a few, side by side. Arrow keys choose. */

interface SegmentsProps<T extends string> {
  label: string;
  options: readonly (readonly [value: T, label: string])[];
  value: T;
  onChange: (value: T) => void;
  /** It has the focus at first. */
  hasFocus?: boolean;
}

export function Segments<T extends string>({ label, options, value, onChange, hasFocus = false }: SegmentsProps<T>) {
  const choose = (event: KeyboardEvent & { currentTarget: HTMLElement }, step: -1 | 1): void => {
    event.preventDefault();
    const index = options.findIndex(([one]) => one === value);
    const next = (index + step + options.length) % options.length;
    const chosen = options[next];
    if (chosen) onChange(chosen[0]);
    const button = event.currentTarget.children[next];
    if (button instanceof HTMLElement) button.focus();
  };
  return (
    <div
      class="seg"
      role="radiogroup"
      aria-label={label}
      onKeyDown={(event) => {
        if (event.key === "ArrowRight" || event.key === "ArrowDown") choose(event, 1);
        if (event.key === "ArrowLeft" || event.key === "ArrowUp") choose(event, -1);
      }}
    >
      {options.map(([one, text]) => (
        <button
          key={one}
          type="button"
          role="radio"
          aria-checked={one === value}
          tabIndex={one === value ? 0 : -1}
          autoFocus={hasFocus && one === value}
          class={one === value ? "on" : ""}
          onClick={() => onChange(one)}
        >
          {text}
        </button>
      ))}
    </div>
  );
}
