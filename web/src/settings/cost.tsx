/** What all sessions have cost, in all and by model. */

import type { UsageView } from "../generated/api.ts";
import { formatCost, plural } from "../ui/format.ts";
import { Line, List, Section, useLoaded } from "./section.tsx";

export function CostSection() {
  const { data, error, reload } = useLoaded<UsageView>("/v1/usage");
  return (
    <Section id="cost" title="Cost" error={error} onRetry={reload} isLoading={data === null}>
      {data && (
        <List>
          <Line icon="time" name="All sessions" actions={<CostWord cost={data.cost} />}>
            {describeUse(data)}
          </Line>
          {data.models.length > 1 &&
            data.models.map((one) => (
              <Line key={one.model} icon="chip" name={one.model || "Model of the agent"} actions={<CostWord cost={one.cost} />}>
                {describeUse(one)}
              </Line>
            ))}
        </List>
      )}
    </Section>
  );
}

function CostWord({ cost }: { cost: number }) {
  return <b class="w5 set-word">{formatCost(cost)}</b>;
}

function describeUse({ sessions, turns }: { sessions: number; turns: number }): string {
  return `${plural(sessions, "session")}, ${plural(turns, "turn")}, finished runs only`;
}
