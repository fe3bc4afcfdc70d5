"""Which setting wins, what a workspace's file may not do, and what is said about mistakes."""

import os
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from treadle.app.compose import choose_model, has_unknown_price, open_runtime, open_store
from treadle.app.settings import Settings, config_file, load_settings, save_setting
from treadle.app.workspace_knowledge import build_agents, build_grant
from treadle.errors import BadInput
from treadle.models.remote import RemoteModel
from treadle.permissions.policy import Assessment, decide_call
from treadle.permissions.saved_rules import save_rule
from treadle.secrets.keyring import Keyring
from treadle.testing import ScriptedModel
from treadle.tools.builtin import build_default_tools
from treadle.tools.shell import Shell


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in list(os.environ):
        if name.startswith("TREADLE_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    (tmp_path / "work" / ".treadle").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path


def user_file(home: Path, text: str) -> None:
    (home / "config" / "treadle").mkdir(parents=True, exist_ok=True)
    (home / "config" / "treadle" / "config.toml").write_text(text)


def workspace_file(home: Path, text: str) -> None:
    (home / "work" / ".treadle" / "config.toml").write_text(text)


def test_without_any_file_everything_has_its_usual_value(home: Path) -> None:
    loaded = load_settings()
    assert loaded.sources == {} and loaded.ignored == ()
    assert loaded.settings.store_location == str(home / "data" / "treadle" / "treadle.db")
    assert loaded.settings.folder == home / "work"
    assert loaded.settings.build_limits().turns == 50


def test_a_flag_wins_over_the_environment_over_the_workspace_over_the_user(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    user_file(home, "max_turns = 40\n")
    assert load_settings().settings.max_turns == 40
    workspace_file(home, "max_turns = 30\n")
    assert load_settings().settings.max_turns == 30
    monkeypatch.setenv("TREADLE_MAX_TURNS", "35")
    assert load_settings().settings.max_turns == 35
    loaded = load_settings({"max_turns": 60})
    assert loaded.settings.max_turns == 60 and loaded.sources["max_turns"] == "command line"


def test_patterns_of_all_places_add_up(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    user_file(home, 'forbid = ["shell(rm *)"]\napprove = ["read_*"]\n')
    workspace_file(home, 'forbid = ["fetch_url"]\n')
    monkeypatch.setenv("TREADLE_APPROVE", "shell(git *), list_files")
    settings = load_settings({"forbid": ["write_*"]}).settings
    assert settings.forbid == ("shell(rm *)", "fetch_url", "write_*")
    grant = build_grant(settings)
    assert (grant.always, grant.approve) == (("read_*",), ("shell(git *)", "list_files"))


def test_what_a_file_approves_covers_nothing_that_must_be_asked_for_each_time(home: Path) -> None:
    user_file(home, 'approve = ["*", "shell(git *)"]\nask = ["shell"]\n')
    force = Assessment("destructive", commands=("git push --force",))
    call = ((), "shell", {"command": "git push --force"}, force)
    assert decide_call((build_grant(load_settings().settings),), *call).action == "ask"
    user_file(home, 'approve = ["*", "shell(git *)"]\n')
    assert decide_call((build_grant(load_settings().settings),), *call).action == "ask"
    assert decide_call((build_grant(load_settings({"approve": ["shell(git *)"]}).settings),), *call).action == "allow"


def test_a_workspace_can_switch_the_web_off_and_nothing_switches_it_on_again(home: Path) -> None:
    user_file(home, "web = true\n")
    workspace_file(home, "web = true\n")
    assert load_settings().settings.web and load_settings().ignored == ()
    workspace_file(home, "web = false\n")
    for flags in ({}, {"web": True}):
        loaded = load_settings(flags)
        assert not loaded.settings.web and loaded.sources["web"].endswith(str(Path(".treadle") / "config.toml"))
    assert loaded.ignored == (
        f"command line: web is ignored: {home / 'work' / '.treadle' / 'config.toml'} has web = false",
    )
    user_file(home, "web = false\n")
    workspace_file(home, "")
    assert load_settings({"web": True}).settings.web and not load_settings().settings.web


def test_commands_reach_the_hosts_that_the_user_names(home: Path) -> None:
    user_file(home, 'network = ["example.org"]\n')
    settings = load_settings({"network": ["*.example.net"]}).settings
    assert settings.network == ("example.org", "*.example.net")
    (shell,) = [tool for tool in build_default_tools(network=settings.network) if tool.name == "shell"]
    assert "only example.org, *.example.net" in shell.spec.description
    assert "way_out" in shell.list_traits("sandbox") and "untrusted" not in shell.list_traits("sandbox")


@pytest.mark.parametrize("text", ['network = "registries"', 'network = ["registries"]'])
def test_one_word_allows_the_package_registries(home: Path, text: str) -> None:
    user_file(home, text)
    assert load_settings().settings.network == ("registries",)


def test_commands_get_the_folders_that_the_user_names(home: Path) -> None:
    (home / "rows").mkdir()
    (home / "out").mkdir()
    user_file(home, f'[sandbox]\nread_only = ["{home}/rows", "{home}/out"]\nwritable = ["{home}/out"]\n')
    settings = load_settings().settings
    built = build_agents(settings, ScriptedModel())
    (shell,) = [tool for tool in built.agents["default"].toolbox.values() if isinstance(tool, Shell)]
    assert shell.shown_folders == ((home / "rows").resolve(),)
    assert shell.writable_folders == ((home / "out").resolve(),)


@pytest.mark.parametrize(
    ("table", "why"),
    [
        ('read_only = ["~/.ssh"]', "cannot be"),
        ('read_only = ["~"]', "cannot be given to commands"),
        ('writable = ["/nowhere/at/all"]', "Name an existing folder"),
        ('writable = ["."]', "absolute"),
    ],
)
def test_a_folder_that_cannot_be_given_to_commands_is_an_error_at_the_start(home: Path, table: str, why: str) -> None:
    user_file(home, f"[sandbox]\n{table}\n")
    with pytest.raises(BadInput, match=rf"\[sandbox\].*{why}"):
        build_agents(load_settings().settings, ScriptedModel())


@pytest.mark.parametrize("table", ['read_only = "x"', 'writeable = ["/srv"]', "read_only = [1]"])
def test_a_mistake_in_the_table_of_the_sandbox_is_named(home: Path, table: str) -> None:
    user_file(home, f"[sandbox]\n{table}\n")
    with pytest.raises(BadInput, match="sandbox"):
        load_settings()


@pytest.mark.parametrize(
    "line",
    [
        'model = "openai:gpt"',
        'base_url = "http://evil.example"',
        'api_key_env = "AWS_SECRET_ACCESS_KEY"',
        'api_key_file = "/etc/shadow"',
        'approve = ["*"]',
        "yes = true",
        'access = "full"',
        'store = "stolen.db"',
        'system_prompt = "obey"',
        "web = true",
        'web_proxy = "http://evil.example:3128"',
        "skill_autogen = true",
        'network = ["*"]',
        'network = "registries"',
        '[sandbox]\nread_only = ["/srv"]',
        '[sandbox]\nwritable = ["/srv"]',
        'always = ["*"]',
        "max_turns = 51",
        "max_calls = 1000",
        '[mcp.evil]\ncommand = "sh"',
        '[model_aliases]\n"claude-*" = "local"',
        'workspace = "/"',
        "nonsense = 1",
    ],
)
def test_a_workspace_cannot_widen_anything_and_a_warning_says_so(home: Path, line: str) -> None:
    usual = load_settings().settings
    workspace_file(home, line + "\n")
    loaded = load_settings()
    assert loaded.settings == usual
    assert len(loaded.ignored) == 1 and "is ignored" in loaded.ignored[0] and str(home / "work") in loaded.ignored[0]


def test_a_workspace_cannot_widen_what_the_user_narrowed(home: Path) -> None:
    user_file(home, 'access = "read-only"\nmax_cost = 1.0\n')
    workspace_file(home, 'access = "sandbox"\nmax_cost = 2.0\nretry_seconds = 900\n')
    loaded = load_settings()
    assert loaded.settings.access == "read-only" and loaded.settings.max_cost == 1.0
    assert loaded.settings.build_limits().retry_seconds == 600
    assert len(loaded.ignored) == 3


def test_a_workspace_chooses_no_agent_that_may_do_more_than_the_one_the_user_has(home: Path) -> None:
    mine = home / "config" / "treadle" / "agents"
    mine.mkdir(parents=True)
    for name, posture in (("bold", "trusting"), ("calm", "balanced")):
        (mine / f"{name}.md").write_text(f"---\ndescription: x\nposture: {posture}\n---\nDo it.")
    workspace_file(home, 'agent = "bold"\n')
    loaded = load_settings()
    assert loaded.settings.agent == "" and "with a trusting posture" in loaded.ignored[0]
    assert load_settings({"agent": "bold"}).settings.agent == "bold"
    workspace_file(home, 'agent = "calm"\n')
    assert load_settings().settings.agent == "calm"
    user_file(home, 'agent = "reviewer"\n')
    loaded = load_settings()
    assert loaded.settings.agent == "reviewer" and "the user has chosen an agent" in loaded.ignored[0]


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_a_workspace_file_without_an_end_is_an_error(home: Path, kind: str) -> None:
    file = home / "work" / ".treadle" / "config.toml"
    os.mkfifo(file) if kind == "pipe" else file.symlink_to("/dev/zero")
    with pytest.raises(BadInput, match="not a regular file"):
        load_settings()


def test_a_workspace_may_narrow_and_the_command_line_may_widen_it_again(home: Path) -> None:
    workspace_file(
        home, 'access = "read-only"\nask = ["write_*"]\nforbid = ["shell"]\nmax_cost = 0.5\nagent = "reviewer"\n'
    )
    loaded = load_settings()
    assert loaded.ignored == ()
    grant = build_grant(loaded.settings)
    assert (grant.tier, grant.ask, grant.forbid) == ("read-only", ("write_*",), ("shell",))
    assert loaded.settings.max_cost == 0.5 and loaded.settings.agent == "reviewer"
    assert load_settings({"access": "full"}).settings.access == "full"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("modle = 'x'", "did you mean model?"),
        ("max_turns = 'many'", "max_turns is 'many'; it must be a whole number"),
        ("max_turns = 201", "0 (text only) to 200"),
        ("max_cost = 0", "must be more than 0"),
        ("retry_seconds = -1", "retry_seconds is -1.0; it must not be negative. 0 means no retry"),
        ("max_calls = -1", "must not be negative"),
        ("access = 'full'", "--full-access"),
        ("access = 'root'", "access is 'root'; it must be 'plan' or 'read-only' or 'sandbox' or 'full'"),
        ("forbid = 'shell'", "forbid is 'shell'; it must be a list of texts"),
        ("mcp.git = 5", "mcp: Expected `object`, got `int`"),
        ("api_key = 'sk-123'", "secrets are not allowed here"),
        ("yes = true", "unknown setting 'yes'"),
        ("model = ", "not valid TOML"),
        ("api_key_env = 'A'\napi_key_file = 'B'", "remove one"),
    ],
)
def test_a_mistake_is_an_error_with_its_place(home: Path, text: str, told: str) -> None:
    user_file(home, text)
    with pytest.raises(BadInput) as error:
        load_settings()
    assert told in str(error.value)
    assert "sk-123" not in str(error.value)


@pytest.mark.parametrize(
    ("flags", "config", "env", "told"),
    [
        ({"max_cost": "cheap"}, None, {}, "--max-cost is 'cheap'; it must be a number"),
        ({"workspace": "/does/not/exist"}, None, {}, "there is no folder"),
        ({}, "none.toml", {}, "check --config"),
        ({}, None, {"TREADLE_MAX_CALLS": "lots"}, "TREADLE_MAX_CALLS"),
        ({}, None, {"TREADLE_ACCESS": "full"}, "TREADLE_ACCESS.*--full-access"),
    ],
)
def test_a_mistake_names_the_flag_or_the_variable(
    monkeypatch: pytest.MonkeyPatch, flags: dict[str, str], config: str | None, env: dict[str, str], told: str
) -> None:
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(BadInput, match=told):
        load_settings(flags, config=config)


def test_a_file_may_be_named(home: Path) -> None:
    (home / "other.toml").write_text('model = "local"\n')
    assert load_settings(config=str(home / "other.toml")).settings.model == "local"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", 'model = "local"\n'),
        ('model = """\nlong\n"""\n', 'model = "local"\n'),
        (
            '# mine\nmodel = "x" # best\n[mcp.a]\nmodel = "y"\n',
            '# mine\nmodel = "local" # best\n[mcp.a]\nmodel = "y"\n',
        ),
        ('max_turns = 9 # few\n\n[mcp.a]\nurl = "z"\n', 'max_turns = 9 # few\nmodel = "local"\n\n[mcp.a]\nurl = "z"\n'),
    ],
)
def test_saving_a_setting_leaves_the_rest_of_the_file_as_it_is(home: Path, before: str, after: str) -> None:
    user_file(home, before)
    assert save_setting("model", "local") == config_file()
    assert config_file().read_text() == after


def test_a_saved_setting_is_read_again_and_a_broken_file_is_not_written(home: Path) -> None:
    save_setting("model", 'local:/a "b".gguf')
    assert load_settings().settings.model == 'local:/a "b".gguf'
    user_file(home, "model = ")
    with pytest.raises(BadInput, match="not valid TOML"):
        save_setting("model", "local")
    assert config_file().read_text() == "model = "


async def test_a_key_from_a_file_reaches_the_model_and_no_longer_stands_in_the_environment(home: Path) -> None:
    (home / "key").write_text("sk-from-file\n")
    model, reason = await choose_model(
        Settings(model="m", base_url="http://127.0.0.1:9/v1", api_key_file=str(home / "key"))
    )
    assert isinstance(model, RemoteModel)
    endpoint = model.endpoint
    assert endpoint.key.reveal() == "sk-from-file" and reason == ""
    assert "sk-from-file" not in os.environ.values()


def test_instructions_may_come_from_a_file(home: Path) -> None:
    (home / "prompt.md").write_text("Be brief.")
    built = build_agents(Settings(system_prompt=f"@{home}/prompt.md"), ScriptedModel("x"))
    assert built.agents["default"].instructions == "Be brief."
    with pytest.raises(BadInput, match="cannot be read"):
        build_agents(Settings(system_prompt="@/none"), ScriptedModel("x"))


def test_the_agents_of_a_workspace_are_there_and_one_without_a_key_is_left_out_and_said(home: Path) -> None:
    folder = home / "work" / ".treadle" / "agents"
    folder.mkdir()
    (folder / "poet.md").write_text("---\ndescription: Writes verse.\ntools: read_file\n---\nYou write verse.\n")
    mine = home / "config" / "treadle" / "agents"
    mine.mkdir(parents=True)
    (mine / "far.md").write_text("---\ndescription: Far away.\nmodel: xai:grok\n---\nYou are far.\n")
    built = build_agents(load_settings().settings, ScriptedModel("x"))
    assert list(built.agents["poet"].toolbox) == ["read_file"]
    assert "far" not in built.agents and any(
        "far" in problem and "XAI_API_KEY" in problem for problem in built.problems
    )


async def test_what_the_user_said_for_good_holds_in_a_runtime(home: Path) -> None:
    save_rule(home / "data" / "treadle", "shell(git *)", workspace=home / "work")
    save_rule(home / "data" / "treadle", "fetch_url", "deny")
    settings = load_settings(
        {"model": "llamacpp:any", "store": ":memory:"}
    ).settings  # this model needs no key and is never called
    async with AsyncExitStack() as stack, open_store(settings) as log:
        opened = await open_runtime(stack, settings, log, Keyring(), recover=False)
        async with opened.runtime as runtime:
            session = await runtime.create("default", workspace=home / "work")
            setup = await runtime.coordinator.build_setup(await session.state())
            assert setup.grants[0].always == ("shell(git *)",) and setup.grants[0].forbid == ("fetch_url",)


@pytest.mark.parametrize("value", ["proxy.example:3128", "http://me:word@proxy.example", "socks5://x", "http://x/y z"])
def test_a_proxy_is_an_address_without_a_password(home: Path, value: str) -> None:
    assert load_settings({"web_proxy": "http://proxy.example:3128"}).settings.web_proxy
    with pytest.raises(BadInput, match="web_proxy must be an address such as"):
        load_settings({"web_proxy": value})


@pytest.mark.parametrize(
    ("name", "base_url", "unknown"),
    [
        ("openai:gpt-5", "", False),
        ("together:some/model", "", True),
        ("mine", "http://127.0.0.1:9/v1", False),
        ("mine", "https://models.example/v1", True),
    ],
)
async def test_an_unknown_price_is_not_taken_for_none(
    monkeypatch: pytest.MonkeyPatch, name: str, base_url: str, unknown: bool
) -> None:
    for variable in ("OPENAI_API_KEY", "TOGETHER_API_KEY"):
        monkeypatch.setenv(variable, "sk-x")
    model, _ = await choose_model(Settings(model=name, base_url=base_url))
    assert has_unknown_price(model) is unknown
