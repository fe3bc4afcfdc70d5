/** Asks for a new name, and asks before a session is deleted. */

import { useEffect, useRef, useState } from "preact/hooks";
import type { SessionView } from "../generated/api.ts";
import { sessions } from "../store/sessions.ts";
import { Dialog } from "../ui/dialog.tsx";
import { plural } from "../ui/format.ts";
import { deleteNow, deleting, LONGEST_NAME, rename, renaming } from "./actions.ts";
import { nameSession } from "./session-status.ts";

export function SessionDialogs() {
  const renamed = renaming.value?.where === "dialog" ? sessions.value.get(renaming.value.id) : undefined;
  return (
    <>
      {renamed && <RenameDialog session={renamed} />}
      {deleting.value && <DeleteDialog session={deleting.value} />}
    </>
  );
}

function RenameDialog({ session }: { session: SessionView }) {
  const [name, setName] = useState(session.name);
  const field = useRef<HTMLInputElement>(null);
  useEffect(() => field.current?.select(), []);
  const save = (event: Event): void => {
    event.preventDefault();
    void rename(session, name);
  };
  const close = (): void => void (renaming.value = null);
  return (
    <Dialog title="Rename the session" class="small" onClose={close}>
      <form id="rename" onSubmit={save}>
        <div class="field">
          <input ref={field} aria-label="Name" maxLength={LONGEST_NAME} value={name} onInput={(event) => setName(event.currentTarget.value)} />
        </div>
        <div class="acts end-acts">
          <button type="button" class="b" onClick={close}>
            Cancel
          </button>
          <button type="submit" class="b pri" disabled={name.trim() === ""}>
            Rename
          </button>
        </div>
      </form>
    </Dialog>
  );
}

function DeleteDialog({ session }: { session: SessionView }) {
  const close = (): void => void (deleting.value = null);
  return (
    <Dialog title="Delete this session?" class="small" onClose={close}>
      <p>
        <b class="w5">{nameSession(session)}</b>, {plural(session.turns, "turn")}. Its messages, its log and its long outputs go.
        Files in the workspace stay as they are. This cannot be undone.
      </p>
      <div class="acts end-acts">
        <button type="button" class="b" onClick={close}>
          Cancel
        </button>
        <button type="button" class="b danger" onClick={() => void deleteNow(session)}>
          Delete
        </button>
      </div>
    </Dialog>
  );
}
