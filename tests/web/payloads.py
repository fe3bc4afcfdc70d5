"""Forty texts that would run a script, load something or take the page over, if the page drew them as markup.

Each runs `__hit(NUMBER)` or loads an address under `https://outside.example/`. Each ends with a marker, so that a test
sees that it was drawn.
"""

OUTSIDE = "https://outside.example"
_RUN = "window.__hit(NUMBER)"

_TEMPLATES = [
    f"<script>{_RUN}</script>",
    f"<script src={OUTSIDE}/NUMBER.js></script>",
    f"<img src=x onerror={_RUN}>",
    f'<img src="{OUTSIDE}/NUMBER.png">',
    f"<svg onload={_RUN}>",
    f"<svg><script>{_RUN}</script></svg>",
    f'<svg><use href="{OUTSIDE}/NUMBER.svg#a"/></svg>',
    f"<svg><animate onbegin={_RUN} attributeName=x dur=1s></svg>",
    f"<math><mtext></mtext><mglyph><style></math><img src onerror={_RUN}>",
    f'<iframe src="javascript:{_RUN}"></iframe>',
    f'<iframe srcdoc="<script>parent.{_RUN}</script>"></iframe>',
    f"<object data={OUTSIDE}/NUMBER></object>",
    f"<embed src={OUTSIDE}/NUMBER>",
    f"<video><source onerror={_RUN}></video>",
    f"<audio src={OUTSIDE}/NUMBER.ogg autoplay></audio>",
    f"<input autofocus onfocus={_RUN}>",
    f"<details open ontoggle={_RUN}>",
    f'<a href="javascript:{_RUN}">click</a>',
    f'<form action="javascript:{_RUN}"><button>click</button></form>',
    f'<base href="{OUTSIDE}/NUMBER/">',
    f'<meta http-equiv="refresh" content="0;url={OUTSIDE}/NUMBER">',
    f'<link rel="stylesheet" href="{OUTSIDE}/NUMBER.css">',
    f"<style>@import '{OUTSIDE}/NUMBER.css'; * {{ background: url({OUTSIDE}/NUMBER.gif) }}</style>",
    f'<div style="background:url({OUTSIDE}/NUMBER.gif)">styled</div>',
    f"<template><img src onerror={_RUN}></template>",
    f'<noscript><p title="</noscript><img src onerror={_RUN}>"></noscript>',
    f'<form id="app"><input name="attributes"></form><img name="body" src onerror={_RUN}>',
    f"[click](javascript:{_RUN})",
    f"[click](JaVaScRiPt&colon;{_RUN})",
    "[click](data:text/html;base64,PHNjcmlwdD5hbGVydCgxKTwvc2NyaXB0Pg==)",
    f"![picture]({OUTSIDE}/NUMBER.png)",
    f'![picture](x "onerror={_RUN}")',
    "![picture](data:image/svg+xml;base64,PHN2ZyBvbmxvYWQ9ImFsZXJ0KDEpIiB4bWxucz0iaHR0cDovL3d3dy53My5vcmcvMjAwMC9zdmciLz4=)",
    f"[click]: javascript:{_RUN}\n\n[click]",
    f"<javascript:{_RUN}>",
    f"```<img src=x onerror={_RUN}>\n</code></pre><script>{_RUN}</script>\n```",
    f"| <img src=x onerror={_RUN}> |\n|---|\n| <script>{_RUN}</script> |",
    f"\"'><img src=x onerror={_RUN}>",
    f"</script><script>{_RUN}</script>",
    f"\x1b]8;;javascript:{_RUN}\x07click\x1b]8;;\x07 \u202etxt.exe <!--><img src=x onerror={_RUN}>-->",
]
MARKERS = [f"mark{number:02}" for number in range(len(_TEMPLATES))]
PAYLOADS = [
    f"{template.replace('NUMBER', str(number))} {marker}"
    for number, (template, marker) in enumerate(zip(_TEMPLATES, MARKERS, strict=True))
]
IN_ONE_LINE = [" ".join(one.split()) for one in PAYLOADS]
assert len(PAYLOADS) == 40
