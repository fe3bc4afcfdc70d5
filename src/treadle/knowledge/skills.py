"""Skills in the Agent Skills format: checking a SKILL.md, finding the skills that a message needs, and framing them.

Triggers are not part of the format, so they are texts in its `metadata`. `triggers:` with lists is accepted too. Pure:
`file_knowledge` reads the files.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from treadle.knowledge.base import Origin, Problem, Skill
from treadle.knowledge.front_matter import Fields, read_document

SKILL_FILE = "SKILL.md"
MAX_TRIGGERS = 50
MAX_MESSAGE_LENGTH, MAX_MESSAGE_LINES = 20_000, 200
"""So much of a message is searched for triggers."""
_FRAMES = re.compile(r"<(\s*(?:/\s*)?(?:file|skills?|memories|command)\b)", re.IGNORECASE)
_NAME = re.compile(r"[^\W_]+(-[^\W_]+)*")
_REGEX = re.compile(r"\\[bdswBDSW]|\(\?|\[\^?\w-\w|\.\*|\.\+")


@lru_cache(maxsize=512)  # skills are read for every run and hardly ever change
def read_skill(path: str, text: str, folder: str, origin: Origin) -> tuple[Skill | None, list[Problem]]:
    """Read the skill in a SKILL.md, and its problems."""
    document = read_document(path, text)
    if isinstance(document, Problem):
        return None, [document]
    fields = Fields(document)
    name = unicodedata.normalize("NFKC", fields.read_text("name", 64))
    description = fields.read_text("description", 1024)
    if not _NAME.fullmatch(name) or name != name.lower():
        fields.add_problem("name", "name must be lower-case letters, digits and single hyphens, such as pdf-forms")
    elif name != unicodedata.normalize("NFKC", folder):
        fields.add_problem("name", f"name is {name!r}, but its folder is {folder!r}; they must be the same")
    if not description:
        fields.add_problem("description", "description is missing: say what the skill does and when to use it")
    listed = fields.read_words("triggers") if isinstance(document.fields.get("triggers"), list) else None
    triggers, metadata = fields.read_nested("triggers" if listed is None else ""), fields.read_nested("metadata")
    keywords = (listed or ()) + (triggers.read_words("keywords") or ()) + (metadata.read_words("keywords") or ())
    patterns = (triggers.read_words("patterns") or ()) + (metadata.read_words("patterns", "\n") or ())
    always = triggers.read_flag("always") or metadata.read_flag("always") or False
    for kind, given in (("keywords", keywords), ("patterns", patterns)):
        if len(given) > MAX_TRIGGERS:
            fields.add_problem("metadata", f"{len(given)} {kind} are too many; {MAX_TRIGGERS} are the most")
    problems = [*fields.problems, *triggers.problems, *metadata.problems]
    if problems:
        return None, problems
    notes = [
        document.build_problem("metadata", f"pattern {pattern!r}: only * is special here, not a regular expression")
        for pattern in patterns
        if _REGEX.search(pattern)
    ]
    place = str(Path(path).parent)
    return Skill(name, description, document.body, place, origin, keywords, patterns, always), notes


def find_triggered(skills: Mapping[str, Skill], message: str) -> list[Skill]:
    """Find the skills that a message needs by a keyword or a pattern, sorted by name."""
    text = _fold(message[:MAX_MESSAGE_LENGTH])
    lines = text.splitlines()[:MAX_MESSAGE_LINES]
    found: list[Skill] = []
    for _, skill in sorted(skills.items()):
        if not skill.enabled or skill.always:
            continue
        words = (_fold(word) for word in skill.keywords if word.strip())
        has_keyword = any(word in text and re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text) for word in words)
        if has_keyword or any(_matches(pattern, text, lines) for pattern in skill.patterns):
            found.append(skill)
    return found


def _fold(text: str) -> str:
    return unicodedata.normalize("NFKC", text).casefold()


def _matches(pattern: str, text: str, lines: Sequence[str]) -> bool:
    """Whether the pieces between a pattern's stars stand in one line, in order. Takes linear time."""
    pieces = [piece for piece in _fold(pattern).split("*") if piece.strip()]
    if not pieces or not all(piece in text for piece in pieces):
        return False
    for line in lines:
        end = 0
        for piece in pieces:
            found = line.find(piece, end)
            if found < 0:
                break
            end = found + len(piece)
        else:
            return True
    return False


def frame_text(kind: str, text: str, **attributes: str) -> str:
    """Frame a text with where it comes from. The text itself can neither open nor close a frame."""
    cleaned = {name.rstrip("_"): re.sub(r'["<>\x00-\x1f]', "?", value) for name, value in attributes.items()}
    written = "".join(f' {name}="{value}"' for name, value in cleaned.items())
    escaped = _FRAMES.sub(r"<\\\1", text)
    return f"<{kind}{written}>\n{escaped}\n</{kind}>"


def frame_skill(skill: Skill) -> str:
    """Frame a skill's text for the model."""
    where = "the workspace" if skill.origin == "workspace" else "the user"
    return frame_text("skill", skill.body, name=skill.name, from_=where)


def render_skill_index(skills: Mapping[str, Skill]) -> str:
    """Render the prompt's part about skills: names and descriptions, and the full text of those that always apply."""
    usable = [skill for _, skill in sorted(skills.items()) if skill.enabled]
    listed = [
        f"- {skill.name}{' (of the workspace)' if skill.origin == 'workspace' else ''}: "
        + " ".join(skill.description.split())
        for skill in usable
        if not skill.always
    ]
    parts = [frame_skill(skill) for skill in usable if skill.always]
    if listed:
        heading = "Skills that can be read with use_skill when what is asked for is what they are for:"
        parts.insert(0, frame_text("skills", "\n".join((heading, *listed))))
    return "\n\n".join(parts)
