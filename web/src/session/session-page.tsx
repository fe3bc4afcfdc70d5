import type { SessionTab } from "../router.ts";
export function SessionPage(_: { id: string; tab: SessionTab; at: number | null }) { return <main class="main" />; }
