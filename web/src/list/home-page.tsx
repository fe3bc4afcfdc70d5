export function HomePage({ missing = "" }: { missing?: string }) { return <main class="main">{missing}</main>; }
