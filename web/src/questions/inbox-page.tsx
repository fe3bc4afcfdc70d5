export function InboxPage(_: { question: string }) { return <main class="main" />; }
