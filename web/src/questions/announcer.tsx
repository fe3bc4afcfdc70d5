/** Tells a screen reader of a new question once, at once. The focus stays where it is. */

import { useEffect, useState } from "preact/hooks";
import { sessions } from "../store/sessions.ts";
import { printTitle, readPending, spellOut } from "./ask.ts";
import { followQuestions } from "./notifications.ts";

export function QuestionAnnouncer() {
  const [text, setText] = useState("");
  useEffect(
    () =>
      followQuestions(([first]) => {
        if (!first) return;
        const name = spellOut(sessions.peek().get(first.session_id)?.name ?? "");
        setText(`Question${name && ` in ${name}`}: ${printTitle(readPending(first))}`);
      }),
    [],
  );
  return (
    <div class="sr" role="alert">
      {text}
    </div>
  );
}
