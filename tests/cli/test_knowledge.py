"""What agents know, at the terminal: skills drafted in a chat, contexts compacted and shown again, broken files."""

import asyncio
import json
from typing import Any

from tests.kit.fakes.chat import StrictChat
from tests.kit.sessions import PATIENCE
from tests.kit.terminal import Case, Fact, Place, call_tool, model_options, needs_sandbox, play
from tests.server.test_knowledge import Provider, reply_to
from treadle.events import AgentConfig, Parent, RunFinished, SessionCreated, SessionRenamed
from treadle.log.sqlite import SqliteLog
from treadle.messages import Call, Reply


async def test_a_chat_drafts_a_skill_and_says_where_to_look_at_it(place: Place) -> None:
    folders = ("garden", "cellar", "attic")
    steps = [(f"please look around in the {name}\r", Fact(RunFinished, at)) for at, name in enumerate(folders, 1)]
    steps.append(("", "drafted from this work: look-around"))
    await play(place, Case("", reply_to, steps, env={"TREADLE_SKILL_AUTOGEN": "true"}))
    assert "look-around" not in (await place.quick("skills")).out, "nothing is active before a person says so"
    assert "+1. List the files." in (await place.quick("skills", "proposals")).out
    assert (await place.quick("skills", "accept", "look-around")).code == 0
    assert "look-around" in (await place.quick("skills")).out


async def test_without_being_switched_on_no_skill_is_drafted(place: Place) -> None:
    steps = [("please look around in the garden\r", Fact(RunFinished, number)) for number in range(1, 5)]
    played = await play(place, Case("", reply_to, steps))
    prompts = [str(seen.body["messages"][0]["content"]) for seen in played.fake.seen if seen.raw]
    assert len(prompts) >= 4 and not any(text.startswith("You write down how") for text in prompts)
    assert "no skill is proposed" in (await place.quick("skills", "proposals")).err


async def test_a_context_is_compacted_and_shown_again_in_a_chat(place: Place) -> None:
    def answer(body: dict[str, Any]) -> Reply:
        sums_up = "notes of an agent" in str(body["messages"][0])
        return Reply("- a story was told" if sums_up else "There was a king who could not sleep. " * 60)

    steps = [
        ("tell me a story\r", Fact(RunFinished)),
        ("and another one\r", Fact(RunFinished, 2)),
        ("/compact undo\r", "no compaction in effect"),
        ("/context\r", "counted by the provider"),
        ("/compact\r", "context compacted"),
        ("/context\r", "· estimated"),
        ("/compact undo\r", "is undone"),
        ("/compact all\r", "takes no argument, or undo"),
        ("one more\r", Fact(RunFinished, 3)),
    ]
    played = await play(place, Case("", answer, steps, said=("tell me a story", "and another one", "one more")))
    assert "a story was told" not in str(played.fake.seen[-1].body["messages"])


async def test_a_run_recalls_by_meaning_where_an_embedding_model_is_named(place: Place) -> None:
    async with Provider(recall_once) as fake:
        named = {"TREADLE_EMBED_MODEL": "vectors", "TREADLE_BASE_URL": fake.base_url}
        for text in ("Bread needs salt.", "A crimson gate."):
            assert (await place.quick("memory", "add", text)).code == 0
        assert (await place.quick("memory", "search", "anything red")).out == ""
        found, answer = "", "Nothing"
        async with asyncio.timeout(3 * PATIENCE):  # an embedding that a slow machine keeps waiting is done without
            while not found:
                found = (await place.quick("memory", "search", "anything red", env=named)).out
            while answer.startswith("Nothing"):
                done = await place.quick(
                    "run", "what is red?", "--json", *model_options(fake), env={"TREADLE_EMBED_MODEL": "vectors"}
                )
                answer = done.document["answer"]
    assert "crimson" in found and "Bread" not in found
    assert "crimson" in answer and "Bread" not in answer


def recall_once(body: dict[str, Any]) -> Reply:
    last = body["messages"][-1]
    if last["role"] == "user":
        return Reply(calls=(Call("call_1", "recall", json.dumps({"query": "anything red"})),), finish="calls")
    return Reply(str(last["content"]))


async def test_a_workspace_cannot_name_the_embedding_model(place: Place) -> None:
    (place.work / ".treadle").mkdir()
    (place.work / ".treadle" / "config.toml").write_text('embed_model = "openai:text-embedding-3-small"\n')
    async with StrictChat([Reply("Hello.")]) as fake:
        done = await place.quick("run", "hello", *model_options(fake))
    assert done.code == 0 and "embed_model is ignored: a workspace may not set it" in done.err


async def test_mistakes_in_agents_and_skills_are_told_with_file_and_line_and_the_others_work(place: Place) -> None:
    agents, skills = place.work / ".treadle" / "agents", place.work / ".treadle" / "skills"
    agents.mkdir(parents=True)
    (agents / "broken.md").write_text("---\ndescription: x\nsteps: many\n---\nHi.\n")
    (agents / "greedy.md").write_text(
        "---\ndescription: über alles\nposture: trusting\nmodel: openai:gpt-4o\nsteps: 200\n---\nHi.\n"
    )
    (place.work / "AGENTS.md").write_text(
        "Be kind.\n\n## Poet\n---\ndescription: verse\ntemperature: hot\n---\nRhyme.\n"
    )
    for name, text in (("good", "name: good\ndescription: fine"), ("bad", "name: other\ndescription: d")):
        (skills / name).mkdir(parents=True)
        (skills / name / "SKILL.md").write_text(f"---\n{text}\n---\nDo it.\n")
    outside = place.home / "outside"
    (outside / "linked").mkdir(parents=True)
    (outside / "linked" / "SKILL.md").write_text("---\nname: linked\ndescription: from elsewhere\n---\nDo it.\n")
    (skills / "linked").symlink_to(outside / "linked")
    listed = await place.quick("agents")
    assert listed.code == 0 and "greedy" in listed.out and "broken" not in listed.out and "Poet" not in listed.out
    assert f"{agents}/broken.md:3: " in listed.err and f"{place.work}/AGENTS.md:6: " in listed.err
    assert f"{agents}/greedy.md:3: a workspace cannot widen" in listed.err and "greedy.md:4: " in listed.err
    shown = await place.quick("skills")
    assert "good" in shown.out and "bad" not in shown.out and "linked" not in shown.out
    assert f"{skills}/bad/SKILL.md:2: " in shown.err
    async with StrictChat([Reply("Hello.")]) as fake:
        done = await place.quick("run", "hello", "--agent", "greedy", *model_options(fake))
        asked = fake.seen[-1].body
    assert done.code == 0 and asked["model"] == "fake" and "from elsewhere" not in str(asked) and "fine" in str(asked)


@needs_sandbox
async def test_the_scripts_of_skills_run_like_any_command_and_cannot_be_changed(place: Place) -> None:
    own, here = place.home / ".config/treadle/skills/greet", place.work / ".treadle/skills/wave"
    for folder in (own, here):
        (folder / "scripts").mkdir(parents=True)
        (folder / "SKILL.md").write_text(f"---\nname: {folder.name}\ndescription: d\n---\nRun scripts/do.sh.\n")
        (folder / "scripts" / "do.sh").write_text(f"echo {folder.name}d by $(basename $0)\n")
    (own / "secret").symlink_to(place.home / "secret")
    (place.home / "secret").write_text("canary")
    commands = [f"sh {folder}/scripts/do.sh" for folder in (own, here)]
    commands += [f"cat {own}/secret", f"echo x > {own}/scripts/do.sh", f"echo x > {here}/scripts/do.sh"]
    script = [call_tool("shell", f"call_{number}", command=one) for number, one in enumerate(commands)]
    async with StrictChat([*script, Reply("Done.")]) as fake:
        done = await place.quick("run", "greet and wave", "--yes", *model_options(fake))
        told = {one["tool_call_id"]: one["content"] for one in fake.seen[-1].body["messages"] if one["role"] == "tool"}
    assert done.code == 0, done.err
    assert "greetd by do.sh" in told["call_0"] and "waved by do.sh" in told["call_1"]
    assert "canary" not in told["call_2"]
    assert all((folder / "scripts/do.sh").read_text().startswith("echo") for folder in (own, here))


async def test_a_chat_goes_on_with_the_folders_last_session_and_never_with_a_helpers(place: Place) -> None:
    log = SqliteLog(place.home / ".local/share/treadle/treadle.db")
    for name, parent in (("mine", None), ("helper", Parent("mine", 1, "call_1"))):
        created = SessionCreated(
            session_id=name, workspace=str(place.work), parent=parent, agent=AgentConfig("default")
        )
        await log.create(name, [created, SessionRenamed(name=name)])
    await log.close()
    async with (
        StrictChat([Reply("Hello.")]) as fake,
        place.screen("chat", "--continue", *model_options(fake)) as screen,
    ):
        await screen.until("What shall be done?")
        assert await screen.leave() == 0
        assert "continue with: treadle chat --session mine" in screen.text


async def test_an_agent_that_cannot_be_used_gives_the_reason_and_a_model_flag_helps(place: Place) -> None:
    folder = place.work / ".treadle" / "agents"
    folder.mkdir(parents=True)
    (folder / "poet.md").write_text("---\nsteps: many\n---\nYou rhyme.", "utf-8")
    own = place.home / ".config" / "treadle" / "agents"
    own.mkdir(parents=True)
    (own / "critic.md").write_text("---\nmodel: sonnet\ntools: Read, Grep\n---\nYou criticise.", "utf-8")
    async with StrictChat(lambda body: Reply("Hm.")) as fake:
        poet = await place.quick("run", "write", "--agent", "poet", *model_options(fake))
        assert poet.code == 2 and "poet.md:2: steps must be a number" in poet.err
        given = {"TREADLE_MODEL": "gpt-x", "TREADLE_BASE_URL": fake.base_url}
        critic = await place.quick("run", "read it", "--agent", "critic", env=given)
        assert critic.code == 2 and "critic is not available: there is no model 'sonnet'" in critic.err
        critic = await place.quick("run", "read it", "--agent", "critic", *model_options(fake))
        assert (critic.code, critic.out.strip()) == (0, "Hm.")
        assert "agent critic has no tools: no tool here is named 'Read', 'Grep'" in critic.err


def delegate_once(body: dict[str, Any]) -> Reply:
    """One who gives a task away, and a helper who wants to delete something."""
    said = [message for message in body["messages"] if message["role"] != "system"]
    if not any(message["role"] == "tool" for message in said):
        if str(said[0]["content"]).startswith("clear"):
            return call_tool("shell", command="rm -rf /etc/nothing")
        return call_tool("delegate", task="clear it")
    return Reply(f"I was told: {said[-1]['content']}")


async def test_what_a_helper_was_denied_because_nobody_could_be_asked_is_in_the_report(place: Place) -> None:
    async with StrictChat(delegate_once) as fake:
        done = await place.quick("run", "have it cleared", *model_options(fake), "--json")
    report = done.document
    assert (done.code, report["status"], report["reason"]) == (4, "denied", "answered")
    [denied] = report["denied"]
    assert (denied["tool"], denied["arguments"]["command"]) == ("shell", "rm -rf /etc/nothing")
    assert "Nobody can be asked here" in report["answer"]


async def test_what_a_helper_asks_is_answered_at_the_terminal_of_its_parent(place: Place) -> None:
    steps = [("have it cleared\r", "Esc stops the run"), ("nnot today\r", "I was told: I was told: Denied")]
    await play(place, Case("", delegate_once, steps, shows=("rm -rf /etc/nothing", "not today")))
