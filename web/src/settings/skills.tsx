/** Skills: switch them on and off, and decide about those that were drafted from finished work. */

import { useState } from "preact/hooks";
import { api } from "../api.ts";
import type { ProposalDecision, ProposalView, SkillView } from "../generated/api.ts";
import { canApprove, canSend } from "../store/me.ts";
import { Dialog } from "../ui/dialog.tsx";
import { formatAge } from "../ui/format.ts";
import { attempt, showToast } from "../ui/toasts.tsx";
import { VisibleText } from "../ui/visible-text.tsx";
import { Line, Lines, Note, Section, useLoaded } from "./section.tsx";

export function SkillsSection() {
  const skills = useLoaded<SkillView[]>("/v1/skills");
  const proposals = useLoaded<ProposalView[]>("/v1/skills/proposals");
  const [read, setRead] = useState<ProposalView | null>(null);
  const decide = async (proposal: ProposalView, accept: boolean): Promise<void> => {
    setRead(null);
    const path = `/v1/skills/proposals/${encodeURIComponent(proposal.id)}`;
    const isDone = await attempt(async () => {
      const decision = await api.post<ProposalDecision>(path, { accept });
      showToast(accept ? `Accepted ${proposal.name}. It is in ${decision.path}` : `Rejected ${proposal.name}`);
    });
    if (!isDone) return;
    proposals.reload();
    skills.reload();
  };
  const switchSkill = (skill: SkillView): void =>
    void attempt(async () => {
      const after = await api.patch<SkillView>(`/v1/skills/${encodeURIComponent(skill.id)}`, { enabled: !skill.enabled });
      skills.setData((skills.data ?? []).map((one) => (one.id === after.id ? after : one)));
    });
  const hasNone = skills.data?.length === 0 && proposals.data?.length === 0;
  return (
    <Section id="skills" title="Skills" error={skills.error} onRetry={skills.reload} isLoading={skills.data === null}>
      {hasNone && <Note>No skill yet. Skills are files that tell agents how something is done here.</Note>}
      <Lines
        items={proposals.data ?? []}
        draw={(one) => (
          <Line
            key={one.id}
            icon="book"
            name={
              <>
                <b class="w5">
                  <VisibleText text={one.name} />
                </b>{" "}
                <span class="tag acc">Proposed</span>
              </>
            }
            actions={
              <button type="button" class="b" onClick={() => setRead(one)}>
                {canApprove.value ? "Read and decide" : "Read"}
              </button>
            }
          >
            <VisibleText text={one.description} />
          </Line>
        )}
      />
      <Lines
        items={skills.data ?? []}
        draw={(one) => (
          <Line
            key={one.id}
            icon="book"
            name={<b class="w5">{one.id}</b>}
            actions={
              canSend.value && (
                <button type="button" class="b bare" onClick={() => switchSkill(one)}>
                  {one.enabled ? "Turn off" : "Turn on"}
                </button>
              )
            }
          >
            {!one.enabled && "Off · "}
            <VisibleText text={one.description} />
          </Line>
        )}
      />
      {read && <ProposalDialog proposal={read} onClose={() => setRead(null)} onDecide={(accept) => void decide(read, accept)} />}
    </Section>
  );
}

interface ProposalDialogProps {
  proposal: ProposalView;
  onClose: () => void;
  onDecide: (accept: boolean) => void;
}

function ProposalDialog({ proposal, onClose, onDecide }: ProposalDialogProps) {
  const footer = canApprove.value && (
    <>
      <button type="button" class="b" onClick={() => onDecide(false)}>
        Reject
      </button>
      <button type="button" class="b pri" onClick={() => onDecide(true)}>
        Accept the skill
      </button>
    </>
  );
  return (
    <Dialog title={`Accept the skill ${proposal.name}?`} onClose={onClose} footer={footer}>
      <p class="m2">
        <VisibleText text={proposal.why} />. Drafted: {formatAge(proposal.created_at, Date.now() / 1000)}. Agents follow a skill as
        they follow your own words, so read it first.
      </p>
      <pre class="skill-text" tabIndex={0}>
        <VisibleText text={proposal.content} />
      </pre>
    </Dialog>
  );
}
