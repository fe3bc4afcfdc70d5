/** The bar at the bottom of a phone. A session has its composer there instead. */

import { navigate, route, type Route } from "../router.ts";
import { useKeys } from "../keys.ts";
import { canSend } from "../store/me.ts";
import { openQuestions } from "../store/sessions.ts";
import { Icon, type IconName } from "../ui/icon.tsx";
import { isPhone } from "./phone.ts";

interface Tab {
  page: Route["page"];
  href: string;
  icon: IconName;
  label: string;
}

const TABS: Tab[] = [
  { page: "home", href: "/", icon: "plan", label: "Sessions" },
  { page: "inbox", href: "/inbox", icon: "inbox", label: "Inbox" },
  { page: "new", href: "/new", icon: "plus", label: "New" },
  { page: "settings", href: "/settings", icon: "sliders", label: "Settings" },
];

export function PhoneTabs() {
  useKeys([
    { keys: "c", label: "New session", where: "Everywhere", run: () => navigate({ page: "new" }), isActive: () => canSend.value },
    { keys: "g i", label: "Inbox", where: "Everywhere", run: () => navigate({ page: "inbox", question: "" }) },
    { keys: "g l", label: "Sessions", where: "Everywhere", run: () => navigate({ page: "home" }) },
  ]);
  const { page } = route.value;
  const isAlone = page === "session" || page === "compare" || (route.value.page === "inbox" && route.value.question !== "");
  if (!isPhone.value || isAlone) return null;
  const count = openQuestions.value.length;
  return (
    <nav class="tabbar" aria-label="Main">
      {TABS.filter((tab) => tab.page !== "new" || canSend.value).map((tab) => (
        <a key={tab.page} href={tab.href} {...(tab.page === page ? { "aria-current": "page" as const } : {})}>
          <Icon name={tab.icon} />
          {tab.label}
          {tab.page === "inbox" && count > 0 && <span class="count">{count}</span>}
        </a>
      ))}
    </nav>
  );
}
