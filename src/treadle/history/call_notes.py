"""The notes that calls leave in the log about files and folders. A rewind reads them."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from treadle.messages import Json
from treadle.workspace.folder import hash_content

FOLDER_NOTE = "treadle.folder"
"""The note that names the folder of the workspace in which the last command ended."""

FILE_NOTE_PREFIX = "treadle.file:"
"""The note about a file has this name and the file's path."""

LEFT_NOTE = "treadle.left"
"""A command notes under this name the hash of each file that it changed, empty where it left no file."""


class FileNote(Struct, frozen=True):
    """The digest of what a file held (empty: no file), and whether a call left it so or only saw it."""

    digest: str = ""
    left: bool = False


def build_file_note(data: bytes | None, *, left: bool) -> Json:
    """Build the note about a file that holds `data`."""
    return msgspec.to_builtins(FileNote(hash_content(data) if data is not None else "", left))


def read_file_note(data: Json) -> FileNote | None:
    """Read a note about a file. Return None when there is none."""
    try:
        return msgspec.convert(data, FileNote)
    except msgspec.ValidationError:
        return None
