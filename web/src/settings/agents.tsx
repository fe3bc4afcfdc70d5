/** Agents, as the server has them. They are changed in the files that define them. */

import type { AgentView } from "../generated/api.ts";
import { formatModel, plural } from "../ui/format.ts";
import { VisibleText } from "../ui/visible-text.tsx";
import { Line, Lines, Note, Section, useLoaded } from "./section.tsx";

export function AgentsSection() {
  const { data, error, reload } = useLoaded<AgentView[]>("/v1/agents");
  return (
    <Section id="agents" title="Agents" error={error} onRetry={reload} isLoading={data === null}>
      {data?.length === 0 && <Note>This server has no agent.</Note>}
      <Lines
        items={data ?? []}
        draw={(one) => {
          const facts = [formatModel(one.model), plural(one.tools.length, "tool"), plural(one.max_iterations, "turn")];
          return (
            <Line key={one.name} icon="help" name={
                <b class="w5">
                  <VisibleText text={one.name} />
                </b>
              }>
              {one.description && (
                <p>
                  <VisibleText text={one.description} />
                </p>
              )}
              <p class="m3">{facts.join(" · ")}</p>
            </Line>
          );
        }}
      />
    </Section>
  );
}
