export function PhoneTabs() { return null; }
