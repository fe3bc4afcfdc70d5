"""The files of the web page, which are built from `web/`."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from pathlib import Path

from treadle.server.public_paths import ASSETS, ROOT_FILES

INDEX = "/index.html"
FOR_A_YEAR = "public, max-age=31536000, immutable"
MEDIA_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".ico": "image/x-icon",
    ".js": "text/javascript; charset=utf-8",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".webmanifest": "application/manifest+json",
    ".woff2": "font/woff2",
}
_HASHED_NAME = re.compile(r".*-[\w-]{8,}\.\w+", re.ASCII)


@dataclass(slots=True)
class StaticFile:
    """A file of the page. Its content is read when a browser first requests it."""

    place: Path
    media_type: str
    cache: str
    _content: dict[str, tuple[bytes, str]] = field(default_factory=dict[str, tuple[bytes, str]])

    def read(self, encoding: str = "") -> tuple[bytes, str]:
        """Read the content, or the compressed content, and its ETag."""
        if encoding not in self._content:
            place = self.place.with_name(self.place.name + ".gz") if encoding else self.place
            data = place.read_bytes()
            self._content[encoding] = data, f'"{hashlib.sha256(data).hexdigest()[:32]}"'
        return self._content[encoding]

    @property
    def is_compressed(self) -> bool:
        return "gzip" in self._content or self.place.with_name(self.place.name + ".gz").is_file()


class StaticFiles:
    """The files of the page by their path. Only files that the folder had when it was read are served.

    The folder is read again when its `index.html` or the list of its assets has changed, which is so after a build.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[str, StaticFile] = {}
        self._version: tuple[int, ...] = ()

    def find(self, path: str) -> StaticFile | None:
        """Find the file of a path such as `/assets/app-1a2b3c4d.js`."""
        try:  # a build may write the assets after the page that names them
            found = [(self._folder / name.strip("/")).stat() for name in (INDEX, ASSETS)]
            version = tuple(number for one in found for number in (one.st_mtime_ns, one.st_ino))
        except OSError:
            version = ()
        if version != self._version:
            self._files, self._version = (self._list_files() if version else {}), version
        return self._files.get(path)

    def _list_files(self) -> dict[str, StaticFile]:
        files: dict[str, StaticFile] = {}
        for place in self._folder.rglob("*"):
            media_type = MEDIA_TYPES.get(place.suffix)
            if media_type is None or place.is_symlink() or not place.is_file():
                continue
            path = f"/{place.relative_to(self._folder).as_posix()}"
            if path == INDEX or path in ROOT_FILES or path.startswith(ASSETS):
                is_hashed = path.startswith(ASSETS) and _HASHED_NAME.fullmatch(place.name) is not None
                files[path] = StaticFile(place, media_type, FOR_A_YEAR if is_hashed else "no-cache")
        return files
