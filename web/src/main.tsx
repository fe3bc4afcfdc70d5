/** The start of the page. */

import { render } from "preact";
import { App } from "./app.tsx";
import { startKeys } from "./keys.ts";
import { startRouter } from "./router.ts";
import { readLoginLink } from "./store/login.ts";
import { followOtherTabs, loadMe } from "./store/me.ts";
import { startTheme } from "./theme.ts";
import { loadAllParts } from "./ui/lazy.tsx";
import { startTitle } from "./ui/title.ts";
import "./styles/tokens.css";
import "./styles/base.css";
import "./styles/shell.css";
import "./list/list.css";
import "./session/session.css";
import "./workspace/diff.css";
import "./workspace/changes.css";
import "./questions/questions.css";
import "./composer/composer.css";
import "./time/time.css";
import "./settings/pages.css";
import "./palette/floating.css";
import "./login/login.css";
import "./list/phone.css";

startTheme();
readLoginLink();
startTitle();
startRouter();
startKeys();
followOtherTabs();
void loadMe();
render(<App />, document.getElementById("app") ?? document.body);
loadAllParts();
