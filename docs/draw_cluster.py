"""Draw docs/cluster.svg: nodes, load balancer, pooler and databases, and what goes between them.

Run it with `make picture`.
"""

from __future__ import annotations

from html import escape
from pathlib import Path

PICTURE = Path(__file__).parent / "cluster.svg"
WIDTH, HEIGHT = 1160, 700

NODES = [("node A", "runs sessions 1 and 4", 60), ("node B", "runs session 2", 400), ("node C", "runs session 3", 740)]
NODE_WIDTH, NODE_TOP, NODE_HEIGHT = 280, 250, 112
STYLE = (
    "text{font-family:Helvetica,Arial,sans-serif;fill:#222;text-anchor:middle}"
    ".title{font-size:16px;font-weight:bold}.about{font-size:13px;fill:#444}.left{text-anchor:start}"
    ".line{stroke:#555;stroke-width:1.5;fill:none;marker-end:url(#tip)}"
    ".news{stroke:#2a7a4b;stroke-width:1.5;stroke-dasharray:6 4;fill:none;marker-end:url(#leaf)}"
    ".green{fill:#2a7a4b}"
)


def draw_box(x: int, y: int, width: int, height: int, colour: str, title: str, *about: str) -> str:
    """Draw a part with its name and what it does."""
    middle, first = x + width // 2, y + (height - 20 * len(about)) // 2 + 6
    lines = [
        f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="8" fill="{colour}" stroke="#555"/>',
        f'<text x="{middle}" y="{first}" class="title">{escape(title)}</text>',
    ]
    for place, text in enumerate(about, 1):
        lines.append(f'<text x="{middle}" y="{first + 20 * place}" class="about">{escape(text)}</text>')
    return "\n".join(lines)


def draw_label(x: int, y: int, text: str, *classes: str) -> str:
    """Draw words beside a line."""
    return f'<text x="{x}" y="{y}" class="{" ".join(("about", *classes))}">{escape(text)}</text>'


def draw_picture() -> str:
    """Draw the whole picture as SVG text."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}">',
        f"<style>{STYLE}</style>",
        "<defs>",
        *(
            f'<marker id="{name}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" '
            f'orient="auto-start-reverse"><path d="M0 0 L8 4 L0 8 z" fill="{colour}"/></marker>'
            for name, colour in (("tip", "#555"), ("leaf", "#2a7a4b"))
        ),
        "</defs>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
        draw_box(340, 24, 400, 56, "#f3f3f3", "people, programs, the web page", "one address, one token"),
        draw_box(400, 130, 280, 56, "#dbe7f6", "load balancer", "any; asks each node for /ready"),
        '<path d="M 540 80 V 128" class="line"/>',
    ]
    for name, runs, x in NODES:
        middle = x + NODE_WIDTH // 2
        parts.append(f'<path d="M 540 186 C 540 220 {middle} 210 {middle} {NODE_TOP - 2}" class="line"/>')
        parts.append(
            draw_box(
                *(x, NODE_TOP, NODE_WIDTH, NODE_HEIGHT, "#d9efe4", f"{name}: treadle serve", runs),
                *("renews its claims within the lease", "answers any request of any session"),
            )
        )
        parts.append(f'<path d="M {middle} {NODE_TOP + NODE_HEIGHT} C {middle} 410 420 400 420 448" class="line"/>')
    parts += [
        draw_label(180, 440, "writes and reads", "left"),
        draw_box(280, 450, 280, 56, "#eee3f5", "pooler (optional)", "PgBouncer, transaction mode"),
        '<path d="M 420 506 V 568" class="line"/>',
        draw_box(
            280, 570, 280, 84, "#fbe9c9", "PostgreSQL, primary", "facts, claims, files, tokens", "its clock counts"
        ),
        draw_box(
            780, 570, 280, 84, "#fbe9c9", "PostgreSQL, standby", "has every acknowledged fact,", "and can be promoted"
        ),
        '<path d="M 560 630 H 778" class="line"/>',
        draw_label(669, 650, "synchronous replication"),
        '<path d="M 940 362 V 520 Q 940 540 920 540 H 530 Q 510 540 510 552 V 568" class="news"/>',
        '<path d="M 600 362 V 530 Q 600 540 590 540" class="news" style="marker-end:none"/>',
        '<path d="M 120 362 V 590 Q 120 610 140 610 H 278" class="news"/>',
        draw_label(620, 470, "one direct connection of each node:", "left", "green"),
        draw_label(620, 488, "news and live text (LISTEN, NOTIFY)", "left", "green"),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    PICTURE.write_text(draw_picture(), "utf-8")
