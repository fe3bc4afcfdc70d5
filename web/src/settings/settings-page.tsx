/** The settings: one page of sections, each with an address of its own. */

import { useEffect, useRef } from "preact/hooks";
import type { ConfigView } from "../generated/api.ts";
import { isPhone } from "../list/phone.ts";
import { navigate, route } from "../router.ts";
import { AgentsSection } from "./agents.tsx";
import { CostSection } from "./cost.tsx";
import { DeviceSection } from "./device.tsx";
import { MemorySection } from "./memory.tsx";
import { ModelsSection } from "./models.tsx";
import { RulesSection } from "./rules.tsx";
import { useLoaded } from "./section.tsx";
import { SECTIONS } from "./sections.ts";
import { readSection } from "./settings-side.tsx";
import { SkillsSection } from "./skills.tsx";
import { McpSection, ToolsSection } from "./tools.tsx";
import { ServerSection, TokensSection } from "./tokens.tsx";
import { useTitle } from "../ui/title.ts";

/** Sections above may still grow while they load, so the wanted one is brought back for this long. In milliseconds. */
const SETTLING = 1500;

export function SettingsPage({ section }: { section: string }) {
  useTitle("Settings");
  const box = useRef<HTMLDivElement>(null);
  const { data: config, error } = useLoaded<ConfigView>("/v1/config");
  useShownSection(box, section);
  return (
    <main class="main">
      {isPhone.value && <SectionPills />}
      <div class="page-scroll" ref={box}>
        <div class="page">
          <h1>Settings</h1>
          <DeviceSection />
          <ModelsSection config={config} />
          <CostSection />
          <AgentsSection />
          <SkillsSection />
          <MemorySection />
          <McpSection />
          <ToolsSection />
          <RulesSection />
          <TokensSection />
          <ServerSection config={config} error={error} />
        </div>
      </div>
    </main>
  );
}

/** Scroll to the section of the address, and note which one the reader is in. */
function useShownSection(box: { current: HTMLDivElement | null }, section: string): void {
  const address = route.value;
  useEffect(() => {
    const page = box.current;
    if (!page) return;
    let isMoved = section === "";
    const show = (): void => {
      if (!isMoved) document.getElementById(section)?.scrollIntoView({ block: "start" });
    };
    show();
    const observer = new ResizeObserver(show);
    for (const one of page.querySelectorAll(".sec")) observer.observe(one);
    const stop = (): void => void (isMoved = true);
    const timer = setTimeout(stop, SETTLING);
    const note = (): void => {
      const top = page.getBoundingClientRect().top + 80;
      const isAtEnd = page.scrollTop + page.clientHeight >= page.scrollHeight - 2;
      const passed = SECTIONS.filter(({ id }) => (document.getElementById(id)?.getBoundingClientRect().top ?? Infinity) <= top);
      const last = isAtEnd && page.scrollTop > 0 ? (section || SECTIONS.at(-1)?.id) : passed.at(-1)?.id;
      readSection.value = last ?? SECTIONS[0]?.id ?? "";
    };
    note();
    page.addEventListener("scroll", note, { passive: true });
    for (const kind of ["wheel", "touchmove", "keydown"]) page.addEventListener(kind, stop, { passive: true });
    return () => {
      observer.disconnect();
      clearTimeout(timer);
      page.removeEventListener("scroll", note);
      for (const kind of ["wheel", "touchmove", "keydown"]) page.removeEventListener(kind, stop);
    };
  }, [section, address]);
}

function SectionPills() {
  return (
    <nav class="pills" aria-label="Sections">
      {SECTIONS.map(({ id, label }) => (
        <a
          key={id}
          href={`/settings/${id}`}
          class={readSection.value === id ? "on" : ""}
          onClick={(event) => (event.preventDefault(), navigate({ page: "settings", section: id }, { replace: true }))}
        >
          {label}
        </a>
      ))}
    </nav>
  );
}
