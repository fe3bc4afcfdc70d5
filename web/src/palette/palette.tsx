export function openPalette(): void {}
export function openKeys(): void {}
export function Palette() { return null; }
