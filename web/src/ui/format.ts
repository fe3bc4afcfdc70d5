/** How the page writes numbers, money, times and names of models. */

const THIN = "\u202f";

/** 412 or 9.6 k or 1.2 M. */
export function formatCount(value: number): string {
  if (value < 1000) return String(Math.round(value));
  const [amount, unit] = value < 999_500 ? [value / 1000, "k"] : [value / 1_000_000, "M"];
  return `${amount < 99.95 ? amount.toFixed(1).replace(/\.0$/, "") : Math.round(amount)}${THIN}${unit}`;
}

/** $0.38, and four digits below a cent. Nothing for no cost. */
export function formatCost(value: number): string {
  if (value === 0) return "$0";
  return value < 0.01 ? `$${value.toFixed(4)}` : `$${value.toFixed(2)}`;
}

/** The length of something that has ended: <0.1 s, 0.3 s, 42 s, 9:41, 1:02:03. */
export function formatDuration(seconds: number): string {
  if (seconds < 0.05) return `<0.1${THIN}s`;
  if (seconds < 10) return `${seconds.toFixed(1)}${THIN}s`;
  return seconds < 60 ? `${Math.round(seconds)}${THIN}s` : formatClock(seconds);
}

/** The length of something under way: 0:42, 12:05, 1:02:03. */
export function formatClock(seconds: number): string {
  const whole = Math.max(0, Math.floor(seconds));
  const [hours, minutes, rest] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60];
  const two = (value: number) => String(value).padStart(2, "0");
  return hours ? `${hours}:${two(minutes)}:${two(rest)}` : `${minutes}:${two(rest)}`;
}

/** How long ago: now, 2 min, 4 h, 1 d. Both in seconds. */
export function formatAge(at: number, now: number): string {
  const seconds = now - at;
  if (seconds < 60) return "now";
  if (seconds < 3600) return `${Math.floor(seconds / 60)}${THIN}min`;
  return seconds < 86_400 ? `${Math.floor(seconds / 3600)}${THIN}h` : `${Math.floor(seconds / 86_400)}${THIN}d`;
}

/** The time of day of a fact: 14:07, or 14:07:32 with seconds. */
export function formatTime(at: number, options: { seconds?: boolean } = {}): string {
  const parts = { hour: "2-digit", minute: "2-digit", hourCycle: "h23" } as const;
  return new Date(at * 1000).toLocaleTimeString(undefined, options.seconds ? { ...parts, second: "2-digit" } : parts);
}

/** Whose names stand before a model's name. Names such as "qwen:7b" have a colon of their own. */
const PROVIDERS =
  /^(?:local|anthropic|openai(?:-chat|-responses)?|openrouter|gemini|mistral|deepseek|moonshot|zai|groq|together|fireworks|cerebras|xai|deepinfra|nvidia|huggingface|ollama|llamacpp|lmstudio|vllm):/;

/** A model's name without its provider. */
export function formatModel(model: string): string {
  return model.slice(model.lastIndexOf("/") + 1).replace(PROVIDERS, "");
}

export function plural(count: number, one: string, many = `${one}s`): string {
  return `${spaceThousands(count)} ${count === 1 ? one : many}`;
}

/** 9999 and 10 000. */
function spaceThousands(count: number): string {
  return count < 10_000 ? String(count) : String(count).replace(/\B(?=(\d{3})+$)/g, THIN);
}
