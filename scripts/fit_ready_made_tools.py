#!/usr/bin/env python3
"""Fit the embedded model to the ready-made tools, and write the result into the package.

    python scripts/fit_ready_made_tools.py [--all]

Run it after a change to a ready-made tool, to its examples, or to the prompts that choose a tool: a test fails until
then. Fits that still apply are kept, and outdated ones are dropped. `--all` makes every fit again. Each takes about
20 s.
"""

import argparse
import asyncio
import gzip
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from treadle.app.workspace_knowledge import AgentOptions, WorkspaceKnowledge
from treadle.messages import ToolSpec
from treadle.models.local.chat_prompt import ChatPrompt
from treadle.models.local.llama_process import LlamaEngine
from treadle.models.local.model_cache import SHIPPED, ModelCache, ShippedFacts, compute_fingerprint, read_shipped_facts
from treadle.models.local.tool_choice import Calibration, ToolChooser
from treadle.models.local.weights import ensure_weights
from treadle.tools.builtin import build_default_tools

DIGITS = 4


def list_tool_sets() -> list[tuple[ToolSpec, ...]]:
    """The sets of tools that treadle itself offers: to each built-in agent and in the library, without and with web."""
    found: dict[tuple[str, ...], tuple[ToolSpec, ...]] = {}
    with tempfile.TemporaryDirectory() as empty:
        knowledge = WorkspaceKnowledge(empty)
        for web in (False, True):
            tools = build_default_tools(web=web, kept=empty)
            agents = knowledge.build_all_agents(AgentOptions(model="local", tools=tools))
            for each in (tools, *(agent.toolbox.values() for agent in agents)):
                specs = tuple(sorted((tool.spec for tool in each), key=lambda spec: spec.name))
                found[tuple(spec.name for spec in specs)] = specs
    return list(found.values())


def round_numbers(value: Any) -> Any:
    """Cut numbers to few digits: the file is half as large, and the order of the tools stays the same."""
    match value:
        case float():
            return float(f"{value:.{DIGITS}g}")
        case list():
            return [round_numbers(each) for each in value]
        case dict():
            return {key: round_numbers(each) for key, each in value.items()}
        case _:
            return value


def show_progress(message: str, done: float, total: float) -> None:
    sys.stderr.write(f"\r\x1b[2K{message} {done:.0f} of {total:.0f}")


async def main() -> None:
    parser = argparse.ArgumentParser(description="Fit the embedded model to the ready-made tools.")
    parser.add_argument("--all", action="store_true", help="make every fit again")
    weights = ensure_weights(None)
    known: ShippedFacts = {} if parser.parse_args().all or not SHIPPED.exists() else read_shipped_facts()
    before = known.get(compute_fingerprint(weights), {})
    fits: dict[str, object] = {}
    engine = LlamaEngine(weights)
    chat = ChatPrompt(engine, await engine.load())
    for tools in list_tool_sets():
        with tempfile.TemporaryDirectory() as folder:
            cache = ModelCache(Path(folder), weights, shipped=Path(os.devnull))
            chooser = ToolChooser(engine, chat, tools, cache)
            key = await chooser.compute_key()
            if key in before:
                fits[key] = before[key]
                continue
            await chooser.rank_tools("Hello", show_progress)
            fits[key] = round_numbers(msgspec.to_builtins(cache.read(key, Calibration)))
    engine.stop()
    text = msgspec.json.encode({compute_fingerprint(weights): dict(sorted(fits.items()))})
    SHIPPED.write_bytes(gzip.compress(text, mtime=0))
    sys.stderr.write(f"\r\x1b[2K{len(fits)} fits, {SHIPPED.stat().st_size} bytes in {SHIPPED}\n")


if __name__ == "__main__":
    asyncio.run(main())
