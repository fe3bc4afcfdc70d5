"""Build messages from what the user types: text, files attached with `@path`, and images."""

from __future__ import annotations

import base64
import mimetypes
import re
from collections.abc import Iterable
from pathlib import Path

from treadle import FilePart, ImagePart, TextPart
from treadle.errors import BadInput
from treadle.messages import Part

MAX_TEXT_BYTES = 256 * 1024
MAX_FILE_BYTES = 20 * 1024 * 1024
_MENTION = re.compile(r"(?<!\S)@(?:\"([^\"]+)\"|(\S+))")


def build_message(text: str, folder: Path, images: Iterable[str] = ()) -> list[Part]:
    """Build the parts of a message. An `@` mention that names no file stays plain text."""
    parts: list[Part] = [TextPart(text)]
    seen: set[Path] = set()
    for match in _MENTION.finditer(text):
        name = match[1] or match[2]
        file = _file(name, folder)
        if file is not None and file not in seen:
            seen.add(file)
            parts.append(_attached(file, name))
    for name in images:
        file = Path(name).expanduser()
        if not file.is_file():
            raise BadInput(f"there is no image {file}; nothing was sent")
        parts.append(_image(file, _media_type(file)))
    return parts


def _file(name: str, folder: Path) -> Path | None:
    """Find the mentioned file. Ignore punctuation that follows its name."""
    for candidate in dict.fromkeys((name, name.rstrip(".,;:!?)"))):
        path = Path(candidate).expanduser()
        for file in (folder / path, path.absolute()):
            if candidate and file.is_file():
                return file.resolve()
    return None


def _attached(file: Path, name: str) -> Part:
    media_type = _media_type(file)
    if media_type.startswith("image/") and media_type != "image/svg+xml":
        return _image(file, media_type)
    data = _read(file, MAX_FILE_BYTES)
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return FilePart(file.name, base64.b64encode(data).decode(), media_type)
    if len(data) > MAX_TEXT_BYTES:
        raise BadInput(f"{file} has {len(data)} bytes, too many to go with a message; name it without the @")
    return TextPart(f"The file {name}:\n\n{text}")


def _image(file: Path, media_type: str) -> ImagePart:
    if not media_type.startswith("image/"):
        raise BadInput(f"{file} is no image ({media_type}); write it as @{file} in the message")
    return ImagePart(base64.b64encode(_read(file, MAX_FILE_BYTES)).decode(), media_type)


def _media_type(file: Path) -> str:
    return mimetypes.guess_type(file.name)[0] or "application/octet-stream"


def _read(file: Path, most: int) -> bytes:
    try:
        size = file.stat().st_size
        if size > most:
            raise BadInput(f"{file} has {size} bytes; at most {most} can go with a message")
        return file.read_bytes()
    except OSError as error:
        raise BadInput(f"{file} cannot be read: {error.strerror}; nothing was sent") from None
