"""The settings: what the server has, and what may be changed."""

from playwright.async_api import expect

from tests.kit.browser import Visits
from tests.kit.page_server import PageServer


async def test_a_memory_is_edited_searched_and_deleted(server: PageServer, visits: Visits) -> None:
    async with server.client() as client:
        for text in ("The build needs Node.", "Tests run in two minutes."):
            await client.json("POST", "/v1/memory", {"content": text}, 201)
    page = await visits.open(server, "/settings/memory")
    memory = page.get_by_role("region", name="Memory")
    await expect(memory).to_contain_text("The build needs Node.")
    row = memory.get_by_role("listitem").filter(has_text="Node")
    await row.get_by_role("button", name="Edit").click()
    field = memory.get_by_role("textbox", name="Memory")
    await field.fill("The build needs no Node.")
    await memory.get_by_role("button", name="Save").click()
    await expect(memory).to_contain_text("The build needs no Node.")
    await memory.get_by_role("searchbox").fill("minutes")
    await expect(memory).not_to_contain_text("The build needs no Node.")
    await memory.get_by_role("button", name="Delete").click()
    await expect(memory).not_to_contain_text("two minutes")
    async with server.client() as client:
        left = [one["content"] for one in await client.json("GET", "/v1/memory")]
    assert left == ["The build needs no Node."]


async def test_every_section_shows_what_the_server_has(server: PageServer, visits: Visits) -> None:
    page = await visits.open(server, "/settings")
    main = page.get_by_role("main")
    for section, text in (
        ("Models", "script"),
        ("Agents", "coder"),
        ("Tools", "write_file"),
        ("Tokens", "viewer"),
        ("What the server allows", str(server.workspace)),
    ):
        await page.get_by_role("link", name=section).first.click()
        await expect(main).to_contain_text(text)


async def test_the_chosen_theme_stays_on_this_device(server: PageServer, visits: Visits) -> None:
    page = await visits.open(server, "/")
    await page.get_by_role("button", name="Theme: system").click()
    await page.get_by_role("button", name="Theme: light").click()
    await expect(page.get_by_role("button", name="Theme: dark")).to_be_visible()
    await page.reload()
    await expect(page.locator("html")).to_have_attribute("data-theme", "dark")
