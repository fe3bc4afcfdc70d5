export function StatusBanner() { return null; }
