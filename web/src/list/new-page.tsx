export function NewPage() { return <main class="main" />; }
