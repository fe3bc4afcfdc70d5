export function ComparePage(_: { left: string; right: string }) { return <main class="main" />; }
