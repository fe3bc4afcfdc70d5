"""The first start: when there is no model to use yet, a person chooses one and sets it up at the terminal.

It never asks in a pipe. A key is typed hidden.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import termios
import threading
from pathlib import Path

from treadle.app.diagnose import pull_weights
from treadle.app.settings import LoadedSettings
from treadle.cli import console
from treadle.cli.options import load_command_settings
from treadle.errors import ModelError, TreadleError
from treadle.secrets.keyring import Keyring


async def offer_first_start(args: argparse.Namespace, loaded: LoadedSettings, keyring: Keyring) -> LoadedSettings:
    """Let a person set up a model if there is none. Return the settings to go on with."""
    if args.session or not console.is_terminal(sys.stdin) or not console.is_terminal(sys.stderr):
        return loaded
    from treadle.app.first_model import find_choices

    choices = await find_choices(loaded.settings, keyring)
    if choices:
        console.print_note("No model is set up yet. Which one?")
        for number, choice in enumerate(choices, 1):
            console.print_note(f"  {number}  {choice.label:<26}{choice.about}")
        values = [choice.value for choice in choices]
        while answer := await read_line(f"1 to {len(values)}, or Enter to leave: "):
            try:
                if answer in map(str, range(1, len(values) + 1)):
                    console.print_note(await set_up_model(values[int(answer) - 1], args.config, keyring))
                    return load_command_settings(args)
            except TreadleError as error:
                console.print_note(str(error))
        console.print_note("nothing was set up; `treadle models list` shows what is missing for each model")
    return loaded


async def set_up_model(choice: str, config: str, keyring: Keyring) -> str:
    """Set up what a person chose, and return a note. Raises a `TreadleError` that says why there is none yet."""
    from treadle.app import first_model

    if choice in first_model.KEY_PROVIDERS:
        key = await read_line(f"key of {first_model.KEY_PROVIDERS[choice]} (it is not shown): ", is_hidden=True)
        return await first_model.save_key(choice, key, keyring, config)
    if choice == first_model.ADDRESS:
        url = await read_line("address, such as http://127.0.0.1:8080/v1: ")
        return await first_model.save_address(url, keyring, config)
    return f"the weights are in {await download_weights()}"


async def download_weights() -> Path:
    """Download the embedded model. Ctrl-C stops the download."""
    from treadle.cli.models import PullProgress

    progress, has_left = PullProgress(is_live=True), threading.Event()

    def show(phase: str, done: float, total: float) -> None:
        if has_left.is_set():
            raise ModelError("the download was stopped", kind="cancelled")
        progress.show(phase, done, total)

    try:
        file, _ = await asyncio.to_thread(pull_weights, "local", show)
        return file
    finally:
        has_left.set()
        progress.clear()


async def read_line(question: str, *, is_hidden: bool = False) -> str:
    """Read a line from the terminal, without an echo if it is hidden. An empty text means the person left."""
    sys.stderr.write(question)
    sys.stderr.flush()
    before = termios.tcgetattr(sys.stdin)
    if is_hidden:
        silent = [*before]
        silent[3] &= ~termios.ECHO
        termios.tcsetattr(sys.stdin, termios.TCSAFLUSH, silent)
    try:
        return (await console.read_line()).strip()
    finally:
        if is_hidden:
            termios.tcsetattr(sys.stdin, termios.TCSAFLUSH, before)
            sys.stderr.write("\n")
