/** The steps of a plan: done, in progress, to do. */

import { Icon } from "../ui/icon.tsx";

const MARKS = {
  done: { icon: "check", class: "ok", word: "done: " },
  doing: { icon: "half", class: "now", word: "in progress: " },
  pending: { icon: "ring", class: "", word: "to do: " },
} as const;

export function PlanList({ steps }: { steps: readonly { text: string; status: string }[] }) {
  return (
    <ul class="plan">
      {steps.map((step, at) => {
        const mark = MARKS[step.status as keyof typeof MARKS] ?? MARKS.pending;
        return (
          <li key={at} class={mark.class}>
            <Icon name={mark.icon} />
            <span>
              <span class="sr">{mark.word}</span>
              {step.text}
            </span>
          </li>
        );
      })}
    </ul>
  );
}
