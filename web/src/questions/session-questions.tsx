/** The questions of the session on the screen: the key that leads to them, and on a phone the sheet that has the first. */

import { useState } from "preact/hooks";
import { openQuestions } from "../fold.ts";
import { useKeys } from "../keys.ts";
import { isPhone } from "../list/phone.ts";
import { navigate, type SessionTab } from "../router.ts";
import type { OpenSession } from "../store/open-session.ts";
import { Icon } from "../ui/icon.tsx";
import { plural } from "../ui/format.ts";
import { printTitle, readAsk } from "./ask.ts";
import { AskCard, findTurnWords } from "./question-card.tsx";
import { selectNextShown } from "./selection.ts";

interface SessionQuestionsProps {
  session: OpenSession;
  tab: SessionTab;
}

export function SessionQuestions({ session, tab }: SessionQuestionsProps) {
  session.version.value;
  const { id, view } = session;
  const open = openQuestions(view);
  const goNext = (): void => {
    if (selectNextShown()) return;
    if (tab !== "conversation") navigate({ page: "session", id, tab: "conversation", at: null });
    // Questions stand at the end of the conversation. The list draws only what is in sight.
    const box = document.querySelector(".scroll-box > .scroll");
    box?.scrollTo({ top: box.scrollHeight });
  };
  useKeys([{ keys: "q", label: "Next question", where: "Session", isActive: () => openQuestions(view).length > 0, run: goNext }]);
  return isPhone.value && open.length > 0 ? <Sheet session={session} open={open} /> : null;
}

/** It takes the place of the composer. Folded, it is one line above the composer. */
function Sheet({ session, open }: { session: OpenSession; open: ReturnType<typeof openQuestions> }) {
  const [foldedId, setFolded] = useState("");
  const first = open[0];
  if (!first) return null;
  const ask = readAsk(session.id, first.fact);
  const isFolded = foldedId === ask.id;
  const where = open.length > 1 ? `The first of ${plural(open.length, "question")}` : "";
  return (
    <div class={isFolded ? "sheet-box folded" : "sheet-box"}>
      <button
        type="button"
        class="grab"
        aria-expanded={!isFolded}
        aria-label={isFolded ? "Show the question" : "Fold the question, and write instead"}
        onClick={() => setFolded(isFolded ? "" : ask.id)}
      >
        {isFolded && (
          <>
            <Icon name="ask" class="sm" />
            <span class="cut">{printTitle(ask)}</span>
            <Icon name="up" class="sm" />
          </>
        )}
      </button>
      {!isFolded && <AskCard key={ask.id} ask={ask} words={findTurnWords(first.call)} as="sheet" where={where} />}
    </div>
  );
}
