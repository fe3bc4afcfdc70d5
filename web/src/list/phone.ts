/** Whether the page is as narrow as a phone. The style sheets use the same width. */

import { signal } from "@preact/signals";

const narrow = matchMedia("(max-width: 720px)");

export const isPhone = signal(narrow.matches);
narrow.addEventListener("change", () => (isPhone.value = narrow.matches));
