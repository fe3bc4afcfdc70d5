"""The paths of the workspaces that people search, so that not every letter lists a whole workspace."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from pathlib import Path

from treadle.app.file_search import list_paths

LISTING_SECONDS = 5.0
"""For how long the files of a workspace are not listed again. A person types several letters in that time."""
MAX_LISTINGS = 8


class FileIndex:
    """The paths of the workspaces that people search now. Each is listed again after a few seconds."""

    def __init__(self) -> None:
        self._listed: OrderedDict[Path, tuple[float, asyncio.Task[list[str]]]] = OrderedDict()

    async def list_paths(self, folder: Path) -> list[str]:
        """List the paths of a folder. Searches at the same time share one listing."""
        at, listing = self._listed.get(folder, (float("-inf"), None))
        if listing is None or time.monotonic() - at > LISTING_SECONDS:
            listing = asyncio.create_task(asyncio.to_thread(list_paths, folder))
            self._listed[folder] = (time.monotonic(), listing)
            self._listed.move_to_end(folder)
            if len(self._listed) > MAX_LISTINGS:
                self._listed.popitem(last=False)
        return await asyncio.shield(listing)
