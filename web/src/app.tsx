/** The frame of the page: the list of sessions, the page that the address names, and what floats over both. */

import { effect } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { startOutbox } from "./composer/outbox.ts";
import { Side } from "./list/side.tsx";
import { HomePage } from "./list/home-page.tsx";
import { PhoneTabs } from "./list/phone-tabs.tsx";
import { LoginPage } from "./login/login-page.tsx";
import { StatusBanner } from "./login/status-banner.tsx";
import { Palette } from "./palette/palette.tsx";
import { QuestionAnnouncer } from "./questions/announcer.tsx";
import { startNotifications } from "./questions/notifications.ts";
import { route, type Route } from "./router.ts";
import { SessionPage } from "./session/session-page.tsx";
import { login } from "./store/login.ts";
import { showSession } from "./store/open-session.ts";
import { followSessions } from "./store/sessions.ts";
import { lazy } from "./ui/lazy.tsx";
import { Toasts } from "./ui/toasts.tsx";

const waiting = <main class="main" aria-busy="true" />;
const InboxPage = lazy(async () => (await import("./questions/inbox-page.tsx")).InboxPage, waiting);
const NewPage = lazy(async () => (await import("./list/new-page.tsx")).NewPage, waiting);
const SettingsPage = lazy(async () => (await import("./settings/settings-page.tsx")).SettingsPage, waiting);
const ComparePage = lazy(async () => (await import("./time/compare-page.tsx")).ComparePage, waiting);

export function App() {
  if (login.value === "needed") return <LoginPage />;
  if (login.value === "unknown") return <StatusBanner />;
  return <Shell />;
}

function Shell() {
  useEffect(() => {
    const stops = [
      followSessions(),
      startNotifications(),
      startOutbox(),
      effect(() => showSession(route.value.page === "session" ? route.value.id : null)),
      () => showSession(null), // it is opened again after the next login
    ];
    return () => stops.forEach((stop) => stop());
  }, []);
  const { page } = route.value;
  return (
    <>
      <StatusBanner />
      <div class={`shell at-${page}`}>
        <Side />
        <Page route={route.value} />
      </div>
      <PhoneTabs />
      <Palette />
      <Toasts />
      <QuestionAnnouncer />
    </>
  );
}

function Page({ route: to }: { route: Route }) {
  switch (to.page) {
    case "home":
      return <HomePage />;
    case "inbox":
      return <InboxPage question={to.question} />;
    case "new":
      return <NewPage />;
    case "settings":
      return <SettingsPage section={to.section} />;
    case "session":
      return <SessionPage key={to.id} id={to.id} tab={to.tab} at={to.at} />;
    case "compare":
      return <ComparePage left={to.left} right={to.right} />;
    case "unknown":
      return <HomePage missing={to.path} />;
  }
}
