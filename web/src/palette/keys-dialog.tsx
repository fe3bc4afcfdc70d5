/** The list of keys, of all that is on the screen. */

import { listKeys, type KeyCommand } from "../keys.ts";
import { Dialog } from "../ui/dialog.tsx";

export function KeysDialog({ onClose }: { onClose: () => void }) {
  const groups = Map.groupBy(listUnique(listKeys()), (one) => one.where);
  return (
    <Dialog title="Keys" class="keys-dialog" onClose={onClose}>
      <div class="keys">
        {[...groups].sort((a, b) => findRank(a[0]) - findRank(b[0])).map(([where, commands]) => (
          <section key={where}>
            <h3>{where}</h3>
            <dl>
              {commands.map((command) => (
                <div key={command.label}>
                  <dt>{command.label}</dt>
                  <dd>
                    <KeyCaps keys={command.keys} />
                  </dd>
                </div>
              ))}
            </dl>
          </section>
        ))}
      </div>
    </Dialog>
  );
}

const ORDER = ["Everywhere", "Lists", "Session", "Question", "Time"];

function findRank(where: string): number {
  const index = ORDER.findIndex((one) => where.startsWith(one));
  return index < 0 ? ORDER.length : index;
}

/** Parts of the page that are on the screen twice have the same keys. */
function listUnique(commands: KeyCommand[]): KeyCommand[] {
  const seen = new Map(commands.map((one) => [`${one.where} ${one.label}`, one]));
  return [...seen.values()];
}

const NAMES: Record<string, string> = {
  Escape: "Esc", ArrowLeft: "←", ArrowRight: "→", ArrowUp: "↑", ArrowDown: "↓", " ": "Space",
};

/** "Ctrl+k" as Ctrl K, "g i" as G I. */
export function KeyCaps({ keys }: { keys: string }) {
  const parts = keys === " " ? [" "] : keys.split(/[ +]/).filter(Boolean);
  return (
    <span class="caps">
      {parts.map((part) => (
        <kbd key={part}>{NAMES[part] ?? (part.length === 1 ? part.toUpperCase() : part)}</kbd>
      ))}
    </span>
  );
}
