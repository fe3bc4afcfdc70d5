"""The client programs: how each is started, and what its output must have."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "clients.md"
_PIECE = re.compile(
    r"^#+ (?P<heading>[^\n]+)$|^```(?P<kind>python|js|sh)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL
)
ASK_CODER = "Please use {tool} to run the command."
SPAWN = 'Please use multi_agent_v1__spawn_agent {"message": "say: hi"}'
TOOL_SAID = r"The tool said:(?s:.)*treadle-was-here"


@dataclass(frozen=True)
class Place:
    """Where the programs are, the server that they talk to, and a folder for one program's files."""

    python: Path
    node_modules: Path
    address: str
    token: str
    folder: Path


@dataclass(frozen=True)
class Program:
    """One row of the table. `build` gives its command and environment. Its output must match `expected`."""

    name: str
    about: str
    build: Callable[[Place], tuple[list[str], dict[str, str]]]
    expected: str


def _python(script: str, about: str) -> Program:
    def build(place: Place) -> tuple[list[str], dict[str, str]]:
        # Without -P a script would import itself where it has the name of its package.
        return [str(place.python), "-P", str(HERE / "python" / f"{script}.py")], {}

    return Program(script.replace("_", " ") + " (py)", about, build, f"^{script}: ok$")


def _js(script: str, about: str) -> Program:
    def build(place: Place) -> tuple[list[str], dict[str, str]]:
        # Node looks for packages beside the script, so a copy of the script stands beside the packages.
        copy = place.node_modules.parent / f"{script}.mjs"
        copy.write_text((HERE / "js" / f"{script}.mjs").read_text("utf-8"), "utf-8")
        return ["node", str(copy)], {}

    return Program(script.replace("_", " ") + " (js)", about, build, f"^{script}: ok$")


def _codex(about: str, order: str, expected: str) -> Program:
    def build(place: Place) -> tuple[list[str], dict[str, str]]:
        provider = f'{{name="treadle",base_url="{place.address}/v1",env_key="TREADLE_TOKEN",wire_api="responses"}}'
        command = [str(place.node_modules / ".bin" / "codex"), "exec", "--skip-git-repo-check"]
        command += ["--dangerously-bypass-approvals-and-sandbox"]  # it would need rights that a container may not have
        command += ["-c", f"model_providers.treadle={provider}", "-c", 'model_provider="treadle"']
        return [*command, "-c", 'model="script"', order], {}

    return Program(f"codex exec, {about}", f"default configuration: {about} and its result", build, expected)


def _build_claude(place: Place) -> tuple[list[str], dict[str, str]]:
    command = [str(place.node_modules / ".bin" / "claude"), "-p", ASK_CODER.format(tool="Bash")]
    command += ["--allowedTools", "Bash(echo *)"]
    models = ("ANTHROPIC_MODEL", *(f"ANTHROPIC_DEFAULT_{size}_MODEL" for size in ("HAIKU", "SONNET", "OPUS")))
    environment = {"ANTHROPIC_BASE_URL": place.address, "ANTHROPIC_AUTH_TOKEN": place.token, "DISABLE_TELEMETRY": "1"}
    environment |= dict.fromkeys(models, "script")
    return command, environment | {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"}


def _opencode(package: str, about: str) -> Program:
    def build(place: Place) -> tuple[list[str], dict[str, str]]:
        options = {"baseURL": f"{place.address}/v1", "apiKey": place.token}
        provider = {"npm": package, "options": options, "models": {"script": {"name": "script"}}}
        config = {"provider": {"treadle": provider}, "autoupdate": False, "share": "disabled"}
        (place.folder / "opencode.json").write_text(json.dumps(config), "utf-8")
        command = [str(place.node_modules / ".bin" / "opencode"), "run", "-m", "treadle/script"]
        environment = {"OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_LSP_DOWNLOAD": "1"}
        return [*command, ASK_CODER.format(tool="bash")], environment

    return Program(f"opencode, {package}", about, build, TOOL_SAID)


def _read_examples() -> tuple[Program, ...]:
    """The examples of docs/clients.md. Each must say something and end well."""
    examples: list[Program] = []
    heading = ""
    for found in _PIECE.finditer(PAGE.read_text("utf-8")):
        heading = found["heading"] or heading
        if found["kind"]:
            examples.append(_build_example(f"docs: {heading} ({found['kind']})", found["kind"], found["code"]))
    return tuple(examples)


def _build_example(name: str, kind: str, code: str) -> Program:
    def build(place: Place) -> tuple[list[str], dict[str, str]]:
        command, suffix = {
            "python": ([str(place.python), "-P"], "py"),
            "js": (["node"], "mjs"),
            "sh": (["sh", "-eu"], "sh"),
        }[kind]
        folder = place.node_modules.parent if kind == "js" else place.folder
        file = folder / f"example.{suffix}"
        file.write_text(code.replace("http://127.0.0.1:8420", place.address), "utf-8")
        return [*command, str(file)], {}

    return Program(name, "an example of docs/clients.md", build, r"I have read \d messages")


PROGRAMS = (
    _python("openai_sdk", "chat, responses, embeddings, stored and background responses, agents"),
    _python("anthropic_sdk", "messages, tools, count_tokens, agents"),
    _python("langchain", "chat and responses and messages, with a tool"),
    _python("pydantic_ai", "chat, responses and messages: two turns with a tool"),
    _python("litellm", "chat and messages, streamed"),
    _js("openai_sdk", "chat and responses, streamed, with a tool"),
    _js("anthropic_sdk", "messages, streamed, with a tool"),
    _js("vercel_ai_sdk", "chat, responses and messages: three turns with a tool"),
    _js("eventsource", "the events of a session, left and rejoined"),
    _js("ws", "session frames and message frames over WebSocket"),
    _codex("a tool call", ASK_CODER.format(tool="exec_command"), TOOL_SAID),
    _codex("a call in a namespace", SPAWN, r"The tool said:(?s:.)*agent_id"),
    _opencode("@ai-sdk/openai-compatible", "a tool call and its result over Chat Completions"),
    _opencode("@ai-sdk/openai", "the same over Responses"),
    _opencode("@ai-sdk/anthropic", "the same over Messages"),
    *_read_examples(),
    Program("claude -p", "its base URL set: a tool call and its result", _build_claude, TOOL_SAID),
)
