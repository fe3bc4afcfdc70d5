"""Build messages from what the user types: text, files attached with `@path`, and images."""

from __future__ import annotations

import base64
import mimetypes
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from treadle import FilePart, ImagePart, TextPart
from treadle.errors import BadInput
from treadle.messages import Part

MAX_TEXT_BYTES = 256 * 1024
MAX_FILE_BYTES = 20 * 1024 * 1024
_MENTION = re.compile(r"(?<!\S)@(?:\"([^\"]+)\"|(\S+))")


def build_message(text: str, folder: Path, images: Iterable[str] = ()) -> list[Part]:
    """Build the parts of a message. An `@` mention that names no file stays plain text: see `find_missing_files`."""
    parts: list[Part] = [TextPart(text)]
    attached: set[Path] = set()
    for name, path in _find_mentions(text, folder):
        file = path.resolve() if path is not None and path.is_file() else None
        if path is None or file is None or file in attached:
            continue
        # Whoever wrote the workspace could link a harmless name to a key of the user.
        if Path(os.path.abspath(path)).is_relative_to(folder) and not file.is_relative_to(folder.resolve()):
            raise BadInput(f"{name} is a link to {file}, outside of the workspace; attach that file by its own name")
        attached.add(file)
        parts.append(_read_attachment(file, name))
    for name in images:
        file = Path(name).expanduser()
        if not file.is_file():
            raise BadInput(f"there is no image {file}; nothing was sent")
        parts.append(_read_image(file))
    return parts


def find_missing_files(text: str, folder: Path) -> list[str]:
    """List the `@` mentions of a text that name no file. They may be meant as plain text, such as `@decorator`."""
    return [name.rstrip(".,;:!?)") or name for name, path in _find_mentions(text, folder) if path is None]


def _find_mentions(text: str, folder: Path) -> Iterator[tuple[str, Path | None]]:
    """Find the `@` mentions of a text, and the file or folder that each names."""
    for match in _MENTION.finditer(text):
        name = match[1] or match[2]
        names = dict.fromkeys((name, name.rstrip(".,;:!?)")))  # punctuation may follow the name
        try:
            paths = [base / Path(one).expanduser() for one in names if one for base in (folder, Path.cwd())]
            yield name, next((path for path in paths if path.exists()), None)
        except (OSError, RuntimeError, ValueError):  # no user of that name, or no name of a file at all
            yield name, None


def _read_attachment(file: Path, name: str) -> Part:
    media_type = _guess_media_type(file)
    if media_type.startswith("image/") and media_type != "image/svg+xml":
        return _read_image(file)
    data = _read_bytes(file)
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return FilePart(file.name, base64.b64encode(data).decode(), media_type)
    if len(data) > MAX_TEXT_BYTES:
        raise BadInput(f"{file} has {len(data)} bytes, too many to attach; write its name without the @")
    return TextPart(f"The file {name}:\n\n{text}", file=name)


def _read_image(file: Path) -> ImagePart:
    media_type = _guess_media_type(file)
    if not media_type.startswith("image/"):
        raise BadInput(f"{file} is not an image ({media_type}); write it as @{file} in the message")
    return ImagePart(base64.b64encode(_read_bytes(file)).decode(), media_type)


def _guess_media_type(file: Path) -> str:
    return mimetypes.guess_type(file.name)[0] or "application/octet-stream"


def _read_bytes(file: Path) -> bytes:
    try:
        size = file.stat().st_size
        if size > MAX_FILE_BYTES:
            raise BadInput(f"{file} has {size} bytes; at most {MAX_FILE_BYTES} can be attached")
        return file.read_bytes()
    except OSError as error:
        raise BadInput(f"{file} cannot be read: {error.strerror}; nothing was sent") from None
