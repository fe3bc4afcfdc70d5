export function Side() { return <nav class="side" aria-label="Sessions" />; }
