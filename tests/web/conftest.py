"""One browser for all tests of a worker, and one server for each test. All of them share one event loop."""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser

from tests.kit.browser import Visits, find_missing_part, start_browser
from tests.kit.page_server import PageServer, serve_page

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    """Run what needs the browser in the browser's event loop, and skip it loudly where there is none."""
    for item in items:
        if HERE not in item.path.parents or "browser" not in getattr(item, "fixturenames", ()):
            continue
        item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)
        if missing := find_missing_part():
            item.add_marker(pytest.mark.skip(reason=f"NOT TESTED, {missing}"))


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    async with start_browser() as started:
        yield started


@pytest_asyncio.fixture(loop_scope="session")
async def visits(browser: Browser) -> AsyncIterator[Visits]:
    """The pages of one test. It fails when one of them breaks a rule, such as to log an error."""
    visits = Visits(browser)
    yield visits
    await visits.close()


@pytest_asyncio.fixture(loop_scope="session")
async def server(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[PageServer]:
    """A server with the page. Options: `@pytest.mark.parametrize("server", [["--plan"]], indirect=True)`."""
    async with serve_page(tmp_path, *getattr(request, "param", ())) as serving:
        yield serving
