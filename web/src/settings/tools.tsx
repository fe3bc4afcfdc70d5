/** Tools with their safety class, and the MCP servers that bring some of them. */

import { useState } from "preact/hooks";
import type { McpView, ToolView } from "../generated/api.ts";
import { plural } from "../ui/format.ts";
import { Icon } from "../ui/icon.tsx";
import { VisibleText } from "../ui/visible-text.tsx";
import { Line, Lines, Note, Section, useLoaded } from "./section.tsx";

export function McpSection() {
  const { data, error, reload } = useLoaded<McpView[]>("/v1/mcp");
  const [opened, setOpened] = useState("");
  const again = (
    <button type="button" class="b bare" onClick={reload}>
      Look again
    </button>
  );
  return (
    <Section id="mcp" title="MCP servers" tools={again} error={error} onRetry={reload} isLoading={data === null}>
      {data?.length === 0 && <Note>No MCP server. They are named in the settings file, under [mcp.NAME].</Note>}
      <Lines
        items={data ?? []}
        draw={(one) => (
          <Line
            key={one.name}
            icon="plug"
            name={<b class="w5">{one.name}</b>}
            actions={
              one.tools.length > 0 && (
                <button
                  type="button"
                  class="b bare"
                  aria-expanded={opened === one.name}
                  onClick={() => setOpened(opened === one.name ? "" : one.name)}
                >
                  Tools
                </button>
              )
            }
          >
            <McpState server={one} />
            {opened === one.name && (
              <div class="tool-names">
                <VisibleText text={one.tools.join(", ")} />
              </div>
            )}
          </Line>
        )}
      />
    </Section>
  );
}

const MCP_WORDS: Record<string, string> = { starting: "Starting", restarting: "Starting again", closed: "Closed" };

function McpState({ server }: { server: McpView }) {
  if (server.status === "up") {
    return (
      <>
        <span class="tag good">
          <Icon name="check" class="sm" />
          Healthy
        </span>{" "}
        {plural(server.tools.length, "tool")}
      </>
    );
  }
  const word = MCP_WORDS[server.status];
  return (
    <>
      {word ? (
        <span class="tag">
          <Icon name="clock" class="sm" />
          {word}
        </span>
      ) : (
        <span class="tag bad">
          <Icon name="fail" class="sm" />
          Not usable
        </span>
      )}{" "}
      <VisibleText text={server.error} />
    </>
  );
}

export function ToolsSection() {
  const { data, error, reload } = useLoaded<ToolView[]>("/v1/tools");
  return (
    <Section id="tools" title="Tools" error={error} onRetry={reload} isLoading={data === null}>
      {data?.length === 0 && <Note>No agent of this server has tools.</Note>}
      <Lines
        items={data ?? []}
        draw={(one) => (
          <Line key={one.name} icon="term" name={<code>{one.name}</code>} actions={<span class="m3 t12 set-word">{one.class}</span>}>
            <span class="two-lines">
              <VisibleText text={one.description} />
            </span>
          </Line>
        )}
      />
    </Section>
  );
}
