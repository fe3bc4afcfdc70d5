export function SettingsPage(_: { section: string }) { return <main class="main" />; }
