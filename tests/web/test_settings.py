"""The settings: what the server has, and what may be changed."""

import re
from pathlib import Path

import pytest
from playwright.async_api import Locator, Page, expect

from tests.kit.browser import Visits
from tests.kit.page_server import VIEWER, PageServer, serve_page
from treadle.knowledge.skill_drafts import SkillProposals
from treadle.messages import Reply, Usage
from treadle.permissions.saved_rules import load_all_rules, save_rule


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


def region(page: Page, name: str) -> Locator:
    return page.get_by_role("region", name=name)


@pytest.mark.parametrize("server", [["--offer", "openai:gpt-5-mini"]], indirect=True)
async def test_models_say_why_they_cannot_be_used_and_are_unloaded_and_loaded(
    server: PageServer, visits: Visits
) -> None:
    page = await visits.open(server, "/settings/models")
    lines = region(page, "Models").get_by_role("listitem")
    offered, usual = lines.filter(has_text="openai:gpt-5-mini"), lines.filter(has_text="script")
    await expect(offered).to_contain_text("Not usable")
    await expect(offered).to_contain_text("OPENAI_API_KEY")
    await expect(usual).to_contain_text("default")
    await expect(usual).to_contain_text("Ready")
    await usual.get_by_role("button", name="Unload").click()
    await expect(usual).to_contain_text("Not loaded")
    other = await visits.open(server, "/settings/models", user=VIEWER)
    await expect(region(other, "Models")).to_contain_text("Not loaded")
    await expect(region(other, "Models").get_by_role("button", name="Load")).to_have_count(0)
    await usual.get_by_role("button", name="Load").click()
    for one in (page, other):  # the other device hears of it by itself
        await expect(region(one, "Models").get_by_role("listitem").filter(has_text="script")).to_contain_text("Ready")


async def test_a_model_that_does_not_exist_is_not_loaded(server: PageServer, visits: Visits) -> None:
    visits.allow("4[0-9][0-9]")
    page = await visits.open(server, "/settings/models")
    await region(page, "Models").get_by_role("button", name="Load a model").click()
    await page.get_by_label("Name of the model").fill("local:nothing.gguf")
    await page.keyboard.press("Enter")
    await expect(
        page.get_by_role("status").filter(has_text="GGUF").or_(page.get_by_text("model folders"))
    ).to_be_visible()


async def test_a_saved_rule_is_shown_and_revoked(server: PageServer, visits: Visits) -> None:
    folder = server.home / "data" / "treadle"
    save_rule(folder, "shell(uv run *)", "allow", server.workspace, by="owner")
    save_rule(folder, "shell(git push *)", "deny", by="phone")
    viewer = await visits.open(server, "/settings/rules", user=VIEWER)
    await expect(region(viewer, "Saved rules")).to_contain_text("shell(uv run *)")
    await expect(region(viewer, "Saved rules").get_by_role("button", name="Revoke")).to_have_count(0)
    page = await visits.open(server, "/settings/rules")
    lines = region(page, "Saved rules").get_by_role("listitem")
    await expect(lines.filter(has_text="git push")).to_contain_text("Deny everywhere · by phone")
    allowed = lines.filter(has_text="uv run")
    await expect(allowed).to_contain_text("Allow in work · by owner")
    await allowed.get_by_role("button", name="Revoke").click()
    await expect(allowed).to_have_count(0)
    assert [rule.pattern for rule in load_all_rules(folder)] == ["shell(git push *)"]


async def test_a_proposed_skill_is_read_accepted_and_turned_off(server: PageServer, visits: Visits) -> None:
    text = "---\nname: notes\ndescription: How notes are written.\n---\nOne sentence each.\n"
    proposals = SkillProposals(server.home / ".config" / "treadle")
    assert proposals.add("notes", text, "Asked for twice")
    viewer = await visits.open(server, "/settings/skills", user=VIEWER)
    await region(viewer, "Skills").get_by_role("button", name="Read").click()
    dialog = viewer.get_by_role("dialog")
    await expect(dialog).to_contain_text("One sentence each.")
    await expect(dialog.get_by_role("button", name="Accept")).to_have_count(0)
    page = await visits.open(server, "/settings/skills")
    skills = region(page, "Skills")
    await expect(skills).to_contain_text("Proposed")
    await skills.get_by_role("button", name="Read and decide").click()
    await expect(page.get_by_role("dialog")).to_contain_text("Asked for twice")
    await page.get_by_role("button", name="Accept the skill").click()
    await expect(skills.get_by_text("Proposed")).to_have_count(0)
    await skills.get_by_role("button", name="Turn off").click()
    await expect(skills).to_contain_text("Off · How notes are written.")
    await expect(skills.get_by_role("button", name="Turn on")).to_be_visible()


async def test_tokens_show_their_rights_and_mcp_servers_their_health(visits: Visits, tmp_path: Path) -> None:
    settings = tmp_path / ".config" / "treadle" / "config.toml"
    settings.parent.mkdir(parents=True)
    settings.write_text('[mcp.broken]\ncommand = "there-is-no-such-program"\n')
    async with serve_page(tmp_path) as server:
        page = await visits.open(server, "/settings/tokens", user=VIEWER)
        tokens = region(page, "Tokens").get_by_role("listitem")
        await expect(tokens.filter(has_text="owner")).to_contain_text("See, send, approve")
        await expect(tokens.filter(has_text="viewer")).to_contain_text("See only")
        await expect(tokens.filter(has_text="viewer")).to_contain_text("this page")
        broken = region(page, "MCP servers").get_by_role("listitem").filter(has_text="broken")
        await expect(broken).to_contain_text("Not usable")
        await expect(broken).to_contain_text("there-is-no-such-program")
        await page.close()


async def test_gauges_show_tokens_cache_cost_limits_and_the_context_by_kind(server: PageServer, visits: Visits) -> None:
    server.model.script(Reply("First.", usage=Usage(2000, 300, 1500, 100)))
    reply = server.model.hold()
    async with server.client() as client:
        session_id = await client.session(limits={"turns": 5, "cost": 2, "seconds": 600})
        await client.send(session_id, "Go.")
        page = await visits.open(server, f"/s/{session_id}")
        rail = page.get_by_role("complementary", name="About this session")
        for text in ("Tokens in2 k", "From cache75 %", "Tokens out300", "For thoughts100", "$0 of $2.00"):
            await expect(rail).to_contain_text(text)
        await expect(rail.get_by_role("img", name="The context by kind")).to_be_visible()
        for kind in ("System", "Tools", "Skills, memory", "Files", "History"):
            await expect(rail).to_contain_text(kind)
        await client.json("POST", f"/v1/sessions/{session_id}/messages?wait=0", {"content": "Go on."})
        await reply.wait_until_asked()
        await expect(rail).to_contain_text("Turns left4 of 5")
        await expect(rail).to_contain_text(re.compile(r"Time left(10:00|9:\d\d) of 10:00"))
        reply.write("More.")
        reply.end()
        await expect(rail).not_to_contain_text("Turns left")
    await page.goto("/settings/cost")
    await expect(region(page, "Cost")).to_contain_text("1 session, 2 turns")
