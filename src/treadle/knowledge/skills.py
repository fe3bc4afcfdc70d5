"""Skills in the Agent Skills format: a folder with a SKILL.md. Reading them, and telling when one is called for.

Triggers are not part of the format, so they stand in its `metadata`, as text; `triggers:` with lists is read as well.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from treadle.knowledge.base import Origin, Problem, Skill
from treadle.knowledge.bounded_read import list_folders, read_beneath
from treadle.knowledge.front_matter import Fields, read_document
from treadle.knowledge.prompt_frames import frame_text

SKILL_FILE = "SKILL.md"
MAX_SKILLS = 200
MAX_TRIGGERS = 50
MAX_MESSAGE_LENGTH, MAX_MESSAGE_LINES = 20_000, 200
"""So much of a message is looked at for what calls for a skill."""
_NAME = re.compile(r"[^\W_]+(-[^\W_]+)*")
_REGEX = re.compile(r"\\[bdswBDSW]|\(\?|\[\^?\w-\w|\.\*|\.\+")


def read_skills(folder: Path, parts: tuple[str, ...], origin: Origin) -> tuple[list[Skill], list[Problem]]:
    """The skills in a folder, sorted by name; a link is followed only where the user put it."""
    place, own = folder.joinpath(*parts), origin == "user"
    skills: list[Skill] = []
    problems: list[Problem] = []
    for name in list_folders(folder, parts, linked=own)[:MAX_SKILLS]:
        for file in (SKILL_FILE, SKILL_FILE.lower()):  # as the public validator takes them
            text = read_beneath(folder, (*parts, name, file), linked=own)
            if text is not None:
                break
        else:
            continue
        skill, wrong = read_skill(str(place / name / file), text, name, origin)
        problems.extend(wrong)
        if skill is not None:
            skills.append(skill)
    return skills, problems


@lru_cache(maxsize=512)  # skills are read for every run, and hardly ever change
def read_skill(path: str, text: str, folder: str, origin: Origin) -> tuple[Skill | None, list[Problem]]:
    """The skill in a SKILL.md, and what is wrong with it."""
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
    """The skills that a message calls for by a keyword or a pattern, sorted by name."""
    text = _folded(message[:MAX_MESSAGE_LENGTH])
    lines = text.splitlines()[:MAX_MESSAGE_LINES]
    return [
        skill
        for _, skill in sorted(skills.items())
        if skill.enabled
        and not skill.always
        and (_has_word(skill.keywords, text) or _fits_one(skill.patterns, text, lines))
    ]


def _folded(text: str) -> str:
    return unicodedata.normalize("NFKC", text).casefold()


def _has_word(keywords: Iterable[str], text: str) -> bool:
    words = (_folded(word) for word in keywords if word.strip())
    return any(word in text and re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text) for word in words)


def _fits_one(patterns: Iterable[str], text: str, lines: Sequence[str]) -> bool:
    for pattern in patterns:
        pieces = [piece for piece in _folded(pattern).split("*") if piece.strip()]
        if pieces and all(piece in text for piece in pieces) and any(_fits(pieces, line) for line in lines):
            return True
    return False


def _fits(pieces: Sequence[str], line: str) -> bool:
    """Whether the pieces between a pattern's stars stand in the line, in order. Linear time, whatever they are."""
    place = 0
    for piece in pieces:
        found = line.find(piece, place)
        if found < 0:
            return False
        place = found + len(piece)
    return True


def frame_skill(skill: Skill) -> str:
    """A skill's text as the model is shown it."""
    where = "the workspace" if skill.origin == "workspace" else "the user"
    return frame_text("skill", skill.body, name=skill.name, from_=where)


def render_skill_index(skills: Mapping[str, Skill]) -> str:
    """What is always said of skills: names and descriptions, and in full those that always apply."""
    usable = [skill for _, skill in sorted(skills.items()) if skill.enabled]
    listed = [
        f"- {skill.name}{' (of the workspace)' if skill.origin == 'workspace' else ''}: "
        + " ".join(skill.description.split())
        for skill in usable
        if not skill.always
    ]
    parts = [frame_skill(skill) for skill in usable if skill.always]
    if listed:
        head = "Skills that can be read with use_skill when what is asked for is what they are for:"
        parts.insert(0, frame_text("skills", "\n".join((head, *listed))))
    return "\n\n".join(parts)
