"""The fits that the package brings: they belong to the tools as they are now, and to nothing else."""

import importlib.util
from pathlib import Path

import pytest
from msgspec.structs import replace

from treadle.messages import ToolSpec
from treadle.models.local import model_cache
from treadle.models.local.chat_prompt import ChatPrompt
from treadle.models.local.llama_process import EngineFacts, LlamaEngine
from treadle.models.local.load_progress import PhaseProgress
from treadle.models.local.model_cache import ModelCache, read_shipped_facts
from treadle.models.local.tool_choice import Calibration, ToolChooser

SCRIPT = Path(__file__).parents[3] / "scripts" / "fit_ready_made_tools.py"


def list_tool_sets() -> list[tuple[ToolSpec, ...]]:
    spec = importlib.util.spec_from_file_location("fit_ready_made_tools", SCRIPT)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.list_tool_sets()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModelCache:
    """An empty cache of the model that the fits are for. No weights are needed to look one up."""
    (fingerprint,) = read_shipped_facts()
    monkeypatch.setattr(model_cache, "compute_fingerprint", lambda weights: fingerprint)
    return ModelCache(tmp_path, tmp_path)


async def find_fit(cache: ModelCache, tools: tuple[ToolSpec, ...]) -> Calibration | None:
    engine = LlamaEngine(Path("unused"))
    chat = ChatPrompt(engine, EngineFacts(8192, 134_515_008, "<|im_start|>"))
    return cache.read(await ToolChooser(engine, chat, tools, cache).compute_key(), Calibration)


async def test_every_ready_made_set_of_tools_has_its_fit(cache: ModelCache) -> None:
    sets = list_tool_sets()
    for tools in sets:
        names = [tool.name for tool in tools]
        fit = await find_fit(cache, tools)
        assert fit is not None, f"run {SCRIPT.name}: the tools or the prompts changed ({', '.join(names)})"
        assert len(fit.weights) == len(names) + 1
    (fits,) = read_shipped_facts().values()
    assert len(fits) == len(sets), f"run {SCRIPT.name}: there are fits for sets that are no longer offered"


async def test_a_fit_is_not_used_for_other_tools_or_another_model(cache: ModelCache, tmp_path: Path) -> None:
    tools = list_tool_sets()[0]
    changed = (replace(tools[0], examples=(("Do something else", {}),)), *tools[1:])
    assert await find_fit(cache, changed) is None
    cache._fingerprint = "another model"
    assert await find_fit(cache, tools) is None
    broken = tmp_path / "broken.gz"
    broken.write_bytes(b"not compressed")
    cache._shipped = broken
    assert await find_fit(cache, tools) is None


def test_progress_names_its_phases_and_never_goes_back() -> None:
    reported: list[tuple[str, float, float]] = []
    progress = PhaseProgress(lambda *each: reported.append(each), "small.gguf")
    for phase, done in (("fetch", 0), ("fetch", 8), ("fetch", 2), ("check", 0), ("fetch", 9), ("load", 5), ("load", 4)):
        progress(phase, done, 10)
    assert reported == [
        ("fetch 1 of 3", 0, 10),
        ("fetch 1 of 3", 8, 10),
        ("check 2 of 3", 0, 10),
        ("load 3 of 3", 5, 10),
    ]
    reported.clear()
    progress = PhaseProgress(lambda *each: reported.append(each), "small.gguf")
    progress("waiting for another process", 0, 0)
    progress("load", 1, 2)
    assert reported == [("waiting for another process", 0, 0), ("loading small.gguf", 1, 2)]
