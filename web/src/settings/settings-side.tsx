export function SettingsSide() { return <nav class="side" aria-label="Settings" />; }
