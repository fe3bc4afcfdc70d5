"""Draw docs/architecture.svg: the layers of the package, and the way of one message through them.

Run it with `make picture`. The layers are those of the table in docs/architecture.md; a layer that the
table does not have fails.
"""

from __future__ import annotations

import re
from html import escape
from pathlib import Path

HERE = Path(__file__).parent
TABLE = HERE / "architecture.md"
PICTURE = HERE / "architecture.svg"

ROW_HEIGHT, GAP, LEFT_WIDTH, STEP_HEIGHT = 54, 12, 640, 50
MARGIN, TOP, RIGHT = 24, 64, 720
WIDTH = 1240

# From top to bottom. A row of the picture may show several layers of the table side by side.
ROWS: list[tuple[str, tuple[str, ...]]] = [
    ("#dbe7f6", ("cli", "server")),
    ("#dbe7f6", ("app",)),
    ("#d9efe4", ("face",)),
    ("#fbe9c9", ("engine",)),
    ("#eee3f5", ("log", "models", "tools", "sandbox")),
    ("#eee3f5", ("memory", "history", "knowledge", "export")),
    ("#eee3f5", ("git", "workspace")),
    ("#f3f3f3", ("ports", "dialects")),
    ("#e9f1d5", ("pure",)),
    ("#f7dcd7", ("values",)),
]

ABOUT = {
    "cli": "terminal",
    "server": "HTTP",
    "app": "settings, compose, diagnose",
    "face": "Agent  Session  Run  Runtime",
    "engine": "loop, coordinator, model_call, authorize, tool_call",
    "log": "SQLite, in memory",
    "models": "one file a protocol",
    "tools": "files, shell, web",
    "sandbox": "bubblewrap",
    "memory": "across sessions",
    "history": "snapshots",
    "git": "private copies of repositories",
    "workspace": "its files",
    "knowledge": "agents, skills",
    "export": "transcripts",
    "dialects": "wire formats of other programs",
    "ports": "base.py of each folder",
    "pure": "state, steps, context, compaction, permissions, secrets",
    "values": "errors, messages, events",
}

STEPS: list[tuple[str, str, str]] = [
    ("1", "Session.run(message)", "a surface or a library user sends it"),
    ("2", "Log.post", "message_received is stored, then watchers see it"),
    ("3", "Coordinator.wake", "claims the session and starts its loop"),
    ("4", "fold, next_step", "pure: what the facts amount to, what to do next"),
    ("5", "model_call", "builds the request and streams the reply"),
    ("6", "reply", "model_replied, with the calls and signals in it"),
    ("7", "authorize", "schema, budget, policy: allow, ask or deny"),
    ("8", "call_started", "is stored before the tool runs"),
    ("9", "tool_call", "runs the tool, in the sandbox if it is a command"),
    ("10", "call_finished", "is stored; the loop goes back to 4"),
    ("11", "run_finished", "is stored when nothing is left to do"),
    ("12", "Run", "has shown every event to its watcher, in the log's order"),
]


def read_layer_names(text: str) -> set[str]:
    """Read the first column of the layer table, and the folders that its rows name."""
    rows = [line.split("|")[1:3] for line in text.splitlines() if re.match(r"\| [a-z]+ \| `", line)]
    folders = {folder for _, places in rows for folder in re.findall(r"`(\w+)/`", places)}
    return {name.strip() for name, _ in rows} | folders


def draw_box(x: float, y: float, width: float, title: str, about: str, colour: str) -> str:
    """Draw one layer."""
    middle = x + width / 2
    title_y = y + (24 if about else 34)
    lines = [
        f'<rect x="{x:.0f}" y="{y:.0f}" width="{width:.0f}" height="{ROW_HEIGHT}" rx="8" fill="{colour}" '
        'stroke="#555"/>',
        f'<text x="{middle:.0f}" y="{title_y:.0f}" class="title">{escape(title)}</text>',
    ]
    if about:
        lines.append(f'<text x="{middle:.0f}" y="{y + 44:.0f}" class="about">{escape(about)}</text>')
    return "\n".join(lines)


def draw_layers(names: set[str]) -> list[str]:
    """Draw the layers, the highest first."""
    drawn: list[str] = []
    for place, (colour, layers) in enumerate(ROWS):
        if missing := set(layers) - names:
            raise SystemExit(f"{TABLE.name} has no layer {', '.join(sorted(missing))}")
        width = (LEFT_WIDTH - GAP * (len(layers) - 1)) / len(layers)
        y = TOP + place * (ROW_HEIGHT + GAP)
        for column, layer in enumerate(layers):
            drawn.append(draw_box(MARGIN + column * (width + GAP), y, width, layer, ABOUT[layer], colour))
    return drawn


def draw_steps() -> list[str]:
    """Draw the way of one message, and the arrow back from a finished call to the next decision."""
    drawn: list[str] = []
    for place, (number, title, about) in enumerate(STEPS):
        y = TOP + place * STEP_HEIGHT + 20
        drawn.append(f'<circle cx="{RIGHT + 16}" cy="{y}" r="15" fill="#fff" stroke="#555"/>')
        drawn.append(f'<text x="{RIGHT + 16}" y="{y + 5}" class="number">{number}</text>')
        drawn.append(f'<text x="{RIGHT + 44}" y="{y - 1}" class="step">{escape(title)}</text>')
        drawn.append(f'<text x="{RIGHT + 44}" y="{y + 17}" class="about left">{escape(about)}</text>')
        if place + 1 < len(STEPS):
            drawn.append(
                f'<line x1="{RIGHT + 16}" y1="{y + 15}" x2="{RIGHT + 16}" y2="{y + STEP_HEIGHT - 17}" class="arrow"/>'
            )
    first, last = TOP + 3 * STEP_HEIGHT + 20, TOP + 9 * STEP_HEIGHT + 20
    edge = WIDTH - MARGIN
    drawn.append(f'<path d="M {edge - 60} {last} H {edge} V {first} H {edge - 60}" class="arrow" fill="none"/>')
    return drawn


def draw_picture() -> str:
    """Draw the whole picture as SVG text."""
    height = TOP + len(ROWS) * (ROW_HEIGHT + GAP) + 44
    style = (
        "text{font-family:Helvetica,Arial,sans-serif;fill:#222}"
        ".head{font-size:20px;font-weight:bold}.title{font-size:16px;font-weight:bold;text-anchor:middle}"
        ".about{font-size:13px;fill:#444;text-anchor:middle}.left{text-anchor:start}"
        ".step{font-size:15px;font-weight:bold}.number{font-size:14px;text-anchor:middle}"
        ".arrow{stroke:#555;stroke-width:1.5;marker-end:url(#tip)}"
    )
    note = "A layer imports only from layers below it. docs/architecture.md has the exact table."
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}">',
        f"<style>{style}</style>",
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        '<path d="M0 0 L8 4 L0 8 z" fill="#555"/></marker></defs>',
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
        f'<text x="{MARGIN}" y="38" class="head">The layers</text>',
        f'<text x="{RIGHT}" y="38" class="head">The way of one message</text>',
        *draw_layers(read_layer_names(TABLE.read_text("utf-8"))),
        *draw_steps(),
        f'<text x="{MARGIN}" y="{height - 16}" class="about left">{note}</text>',
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    PICTURE.write_text(draw_picture(), "utf-8")
