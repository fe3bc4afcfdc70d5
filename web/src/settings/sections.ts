/** The sections of the settings, in the order of the page. */

import type { IconName } from "../ui/icon.tsx";

export const SECTIONS: { id: string; label: string; icon: IconName }[] = [
  { id: "device", label: "This device", icon: "phone" },
  { id: "models", label: "Models", icon: "chip" },
  { id: "cost", label: "Cost", icon: "time" },
  { id: "agents", label: "Agents", icon: "help" },
  { id: "skills", label: "Skills", icon: "book" },
  { id: "memory", label: "Memory", icon: "note" },
  { id: "mcp", label: "MCP servers", icon: "plug" },
  { id: "tools", label: "Tools", icon: "term" },
  { id: "rules", label: "Saved rules", icon: "shield" },
  { id: "tokens", label: "Tokens", icon: "key" },
  { id: "server", label: "What the server allows", icon: "sliders" },
];
