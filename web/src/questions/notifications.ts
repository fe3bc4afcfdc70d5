export function startNotifications(): () => void { return () => undefined; }
