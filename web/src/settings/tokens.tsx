/** Tokens and what each may do, and what the server allows at all. */

import type { ConfigView, GrantView, TokenView } from "../generated/api.ts";
import { ACCESS_WORDS } from "../list/new-session.ts";
import { logOut } from "../store/me.ts";
import { attempt } from "../ui/toasts.tsx";
import type { Access } from "../view.ts";
import { Line, Lines, List, Note, Section, useLoaded } from "./section.tsx";

const RIGHT_WORDS = { view: "see", send: "send", approve: "approve" } as const;

export function TokensSection() {
  const { data, error, reload } = useLoaded<TokenView[]>("/v1/tokens");
  return (
    <Section id="tokens" title="Tokens" error={error} onRetry={reload} isLoading={data === null}>
      {data?.length === 0 && <Note>This server asks for no token. Everybody who reaches it may do everything.</Note>}
      <Lines
        items={data ?? []}
        draw={(one) => (
          <Line
            key={one.name}
            icon="key"
            name={
              <>
                <b class="w5">{one.name}</b> {one.current && <span class="m3 t12">this page</span>}
              </>
            }
            actions={
              one.current && (
                <button type="button" class="b bare" onClick={() => void attempt(logOut)}>
                  Log out
                </button>
              )
            }
          >
            {describeRights(one)}
          </Line>
        )}
      />
    </Section>
  );
}

function describeRights({ rights, grant }: TokenView): string {
  const words = rights.map((one) => RIGHT_WORDS[one]).join(", ");
  const shown = rights.length === 1 ? `${words} only` : words;
  return `${shown.charAt(0).toUpperCase()}${shown.slice(1)}${grant ? ` · ${describeGrant(grant)}` : ""}`;
}

function describeGrant(grant: GrantView): string {
  const parts = [ACCESS_WORDS[grant.tier as Access]?.label ?? grant.tier];
  if (grant.forbid.length > 0) parts.push(`never ${grant.forbid.join(", ")}`);
  return parts.join(", ");
}

export function ServerSection({ config, error }: { config: ConfigView | null; error: string }) {
  const access = config ? ACCESS_WORDS[config.access as Access] : undefined;
  return (
    <Section id="server" title="What the server allows" error={error} isLoading={config === null}>
      {config && (
        <List>
          <Line icon="shield" name="Access">
            {access ? `${access.label}. ${access.about}` : config.access}
          </Line>
          <Line icon="file" name="Workspaces">
            {config.workspaces.length > 0 ? config.workspaces.join(", ") : "None"}
          </Line>
          <Line icon="search" name="Web">
            {config.web ? "Agents may search and read the web" : "Off"}
          </Line>
          <Line icon="plug" name="Hosts of commands">
            {config.hosts.length > 0 ? config.hosts.join(", ") : "None: commands have no network"}
          </Line>
          <Line icon="clock" name="Turns of a run">
            At most {config.max_iterations}, unless the session sets a limit
          </Line>
        </List>
      )}
    </Section>
  );
}
