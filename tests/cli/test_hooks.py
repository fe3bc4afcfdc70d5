"""Hooks, custom commands and /init in the real program: trust, a kill during a hook, and what the model reads."""

import signal
from pathlib import Path

from tests.kit.fakes.chat import StrictChat
from tests.kit.terminal import Case, Fact, Place, Shows, call_tool, model_options, play, read_user_messages, wait_until
from treadle.events import CallFinished, Custom, RunFinished
from treadle.messages import Reply

CALCULATE = call_tool("calculate", expression="6*7")
HOOKS = '[[before_tool]]\ncommand = "touch $HOME/ran; echo {}"\n'


def configure(place: Place, text: str) -> None:
    file = place.home / ".config/treadle/config.toml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


async def test_without_a_terminal_untrusted_hooks_do_not_run_and_one_line_says_so(place: Place) -> None:
    (place.work / ".treadle").mkdir()
    (place.work / ".treadle/hooks.toml").write_text(HOOKS)
    async with StrictChat([CALCULATE, Reply(text="42"), CALCULATE, Reply(text="42")]) as fake:
        done = await place.quick("run", "add", *model_options(fake))
        assert done.code == 0 and done.err.count("these hooks are not run") == 1 and not (place.home / "ran").exists()
        refused = await place.quick("hooks", "trust")
        assert refused.code == 2 and "touch $HOME/ran" in refused.err and "needs a terminal" in refused.err
        digest = refused.err.split("digest ")[1].split()[0]
        assert (await place.quick("hooks", "trust", "--digest", "0" * 64)).code == 2
        assert (await place.quick("hooks", "trust", "--digest", digest)).code == 0
        assert "trusted" in (await place.quick("hooks")).out
        done = await place.quick("run", "add", *model_options(fake))
    assert done.code == 0 and "hooks" not in done.err and (place.home / "ran").exists()
    assert (await place.quick("hooks", "forget")).code == 0
    assert "new" in (await place.quick("hooks", "list")).out


async def test_on_a_terminal_the_text_is_shown_and_the_user_is_asked(place: Place) -> None:
    (place.work / ".treadle").mkdir()
    (place.work / ".treadle/hooks.toml").write_text(HOOKS)
    async with (
        StrictChat([CALCULATE, Reply(text="It is 42.")]) as fake,
        place.screen("run", "add", *model_options(fake)) as screen,
    ):
        await screen.until("trust these hooks")
        assert "touch $HOME/ran" in screen.unbroken and "outside the sandbox" in screen.unbroken
        screen.type("y\r")
        assert await screen.end() == 0, screen.text
    assert (place.home / "ran").exists()


async def test_a_no_is_remembered_for_exactly_this_text_until_it_is_forgotten(place: Place) -> None:
    (place.work / ".treadle").mkdir()
    file = place.work / ".treadle/hooks.toml"
    file.write_text(HOOKS)

    async def start(fake: StrictChat, *, is_asked: bool) -> str:
        async with place.screen("run", "hello", *model_options(fake)) as screen:
            if is_asked:
                await screen.until("run them from now on?")
                screen.type("n\r")
            assert await screen.end() == 0, screen.text
            return screen.unbroken

    async with StrictChat([Reply(text="Hello.")] * 4) as fake:
        await start(fake, is_asked=True)
        again = await start(fake, is_asked=False)
        assert "because you said no" in again and "treadle hooks forget" in again and "from now on?" not in again
        assert "refused" in (await place.quick("hooks", "list")).out
        assert "asks again" in (await place.quick("hooks", "forget")).err
        await start(fake, is_asked=True)
        file.write_text(f"{HOOKS}# another text\n")
        await start(fake, is_asked=True)
    assert not (place.home / "ran").exists()


async def test_a_program_killed_during_a_hook_loses_nothing_and_doubles_nothing(place: Place) -> None:
    pid = place.home / "pid"
    script = (
        f"echo x >> $HOME/runs; [ -e {pid} ] || {{ echo $$ > {pid}.new; mv {pid}.new {pid}; sleep 600; }}; echo {{}}"
    )
    configure(place, f"[[hooks.before_tool]]\ncommand = '''{script}'''\ntimeout = 500\n")
    async with StrictChat([CALCULATE, Reply(text="It is 42.")]) as fake:
        process = await place.start("run", "add", "--name", "sum", *model_options(fake))
        await wait_until(pid.exists, "the hook runs")
        process.send_signal(signal.SIGKILL)
        await process.communicate()
        hook = Path("/proc", pid.read_text().strip())
        await wait_until(lambda: not hook.exists(), "the hook dies with the program")
        done = await place.run("sessions", "resume", "sum", *model_options(fake))
        assert done.code == 0 and "It is 42." in done.out, done.err
    facts = await place.facts()
    assert [sum(isinstance(fact, kind) for fact in facts) for kind in (Custom, CallFinished, RunFinished)] == [1, 1, 1]
    assert (place.home / "runs").read_text() == "x\nx\n"


async def test_a_denial_reaches_the_model_and_a_refused_message_is_not_sent(place: Place) -> None:
    deny = """grep -q calculate && echo '{"decision": "deny", "reason": "no sums on Sunday"}'"""
    refuse = """grep -q password && echo '{"decision": "deny", "reason": "no secrets"}' || true"""
    configure(place, f'[[hooks.before_tool]]\ncommand = """{deny}"""\n[[hooks.prompt]]\ncommand = """{refuse}"""\n')
    async with StrictChat([CALCULATE, Reply(text="I may not.")]) as fake:
        done = await place.quick("run", "add", *model_options(fake))
        assert "no sums on Sunday" in fake.seen[-1].body["messages"][-1]["content"] and done.out == "I may not.\n"
        refused = await place.quick("run", "my password is x", *model_options(fake))
    assert refused.code == 2 and "no secrets" in refused.err


async def test_an_agent_cannot_write_hooks_or_commands(place: Place) -> None:
    write = call_tool("write_file", path=".treadle/hooks.toml", content=HOOKS)
    script = """
        mkdir -p .treadle/hooks .treadle/commands x; echo evil > .treadle/hooks.toml; echo evil > .treadle/hooks/run
        echo evil > .treadle/commands/evil.md; echo evil > x/hooks.toml; mv x .treadle; ln -s x .treadle
        mv .treadle gone; rm -r .treadle; mv -T x .treadle; ls -A
    """
    async with StrictChat([write, call_tool("shell", command=script), Reply(text="I could not.")]) as fake:
        await place.quick("run", "write it", *model_options(fake), "--yes")
    assert "x" in str(fake.seen[-1].body["messages"][-1])
    assert [path.name for path in place.work.rglob("*") if path.is_file()] == ["hooks.toml"]
    assert (place.work / "x/hooks.toml").exists() and not (place.work / ".treadle").exists()


async def test_custom_commands_are_in_the_menu_and_send_their_text(place: Place) -> None:
    mine = place.home / ".config/treadle/commands/greet.md"
    mine.parent.mkdir(parents=True)
    mine.write_text("Greet $1 warmly.")
    (place.work / "note.txt").write_text("attached text")
    text = "---\ndescription: ship it\n---\nShip $1 with !`touch owned` and @note.txt"
    steps = [
        ("/sh", "ship it (workspace)"),
        ("\x7f\x7f\x7f/greet Ada\r", Fact(RunFinished)),
        ("/ship now\r", Fact(RunFinished, 2)),
    ]
    replies = [Reply(text="Hello."), Reply(text="Shipped.")]
    played = await play(place, Case("", replies, steps, before={".treadle/commands/ship.md": text}))
    first, *rest = read_user_messages(played.fake)
    assert first == "Greet Ada warmly."
    said = str(rest)
    assert "/ship now" in said and "it grants no rights" in said and "!`touch owned`" in said
    assert "attached text" not in said and not (place.work / "owned").exists()


async def test_init_writes_an_agents_file_and_asks_before_it_replaces_one(place: Place) -> None:
    steps = [
        ("/init\r", "written to"),
        (lambda played: (place.work / "AGENTS.md").write_text("mine\n"), None),
        ("/init\r", Shows("Esc changes nothing", below="Replace it with this text?")),
        ("n", "nothing was changed"),
    ]
    await play(place, Case("", [], steps, before={"Makefile": "test:\n\ttrue\n"}, files={"AGENTS.md": "mine\n"}))


async def test_escape_ends_hooks_that_read_a_message_and_gives_the_message_back(place: Place) -> None:
    configure(place, '[[hooks.prompt]]\ncommand = "grep -q wait && sleep 600 || true"\ntimeout = 600\n')
    async with StrictChat([Reply(text="Good day.")]) as fake, place.screen("chat", *model_options(fake)) as screen:
        await screen.until("What shall be done?")
        screen.type("please wait\r")
        await screen.until("hooks read the message")
        screen.type("\x1b")
        await screen.until("the message was not sent: it was stopped")
        screen.type("\x15hello\r")  # Ctrl-U clears the message that came back
        await screen.until("Good day.")
        screen.type("\x04")
        assert await screen.end() == 0, screen.text
    assert read_user_messages(fake) == ["hello"]


async def test_a_refused_message_comes_back_so_that_it_can_be_changed(place: Place) -> None:
    refuse = """grep -q password && echo '{"decision": "deny", "reason": "no secrets"}' || true"""
    configure(place, f'[[hooks.prompt]]\ncommand = """{refuse}"""\n')
    async with StrictChat([Reply(text="Good day.")]) as fake, place.screen("chat", *model_options(fake)) as screen:
        await screen.until("What shall be done?")
        screen.type("hello password\r")
        await screen.until("no secrets")
        screen.type("\x7f" * len(" password") + "\r")
        await screen.until("Good day.")
        screen.type("\x04")
        assert await screen.end() == 0, screen.text
    assert read_user_messages(fake) == ["hello"]


async def test_yes_does_not_answer_a_hook_that_asks_and_no_option_is_named(place: Place) -> None:
    configure(place, """[[hooks.before_tool]]\ncommand = '''echo '{"decision": "ask", "reason": "look twice"}' '''\n""")
    async with StrictChat([CALCULATE, Reply(text="I may not.")]) as fake:
        done = await place.quick("run", "add", *model_options(fake), "--yes")
    assert done.code == 4 and "a hook asks, and only a person can answer it" in done.err and "--approve" not in done.err
