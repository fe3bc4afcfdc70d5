/** Answers that were kept for good. */

import { api } from "../api.ts";
import type { RuleView } from "../generated/api.ts";
import { nameWorkspace } from "../list/session-status.ts";
import { canApprove } from "../store/me.ts";
import { formatAge } from "../ui/format.ts";
import { attempt, showToast } from "../ui/toasts.tsx";
import { VisibleText } from "../ui/visible-text.tsx";
import { Line, Lines, Note, Section, useLoaded } from "./section.tsx";

export function RulesSection() {
  const { data, error, reload } = useLoaded<RuleView[]>("/v1/rules");
  const revoke = async (rule: RuleView): Promise<void> => {
    if (!(await attempt(() => api.delete(`/v1/rules/${encodeURIComponent(rule.id)}`)))) return;
    showToast(`Revoked ${rule.pattern}. It is asked again.`);
    reload();
  };
  return (
    <Section id="rules" title="Saved rules" error={error} onRetry={reload} isLoading={data === null}>
      {data?.length === 0 && <Note>No answer was kept for good. A question offers it as “Keep it for good”.</Note>}
      <Lines
        items={data ?? []}
        draw={(one) => (
          <Line
            key={one.id}
            icon="shield"
            name={
              <code>
                <VisibleText text={one.pattern} />
              </code>
            }
            actions={
              canApprove.value && (
                <button type="button" class="b bare" onClick={() => void revoke(one)}>
                  Revoke
                </button>
              )
            }
          >
            {describeRule(one)}
          </Line>
        )}
      />
    </Section>
  );
}

function describeRule(rule: RuleView): string {
  const what = rule.decision === "allow" ? "Allow" : "Deny";
  const where = rule.workspace ? `in ${nameWorkspace(rule.workspace)}` : "everywhere";
  const age = rule.saved_at ? `, ${formatAge(rule.saved_at, Date.now() / 1000)}` : "";
  return `${what} ${where}${rule.by ? ` · by ${rule.by}` : ""}${age}`;
}
