/** One of a few, shown side by side. Arrow keys choose, as with radio buttons. */

interface ChoiceProps<T extends string> {
  label: string;
  value: T;
  options: readonly { value: T; label: string }[];
  onChange: (value: T) => void;
}

export function Choice<T extends string>({ label, value, options, onChange }: ChoiceProps<T>) {
  const name = `choice-${label.toLowerCase().replace(/\W+/g, "-")}`;
  return (
    <div class="seg" role="radiogroup" aria-label={label}>
      {options.map((option) => (
        <label key={option.value} class={option.value === value ? "on" : ""}>
          <input
            class="sr"
            type="radio"
            name={name}
            value={option.value}
            checked={option.value === value}
            onChange={() => onChange(option.value)}
          />
          {option.label}
        </label>
      ))}
    </div>
  );
}
