"""The settings of a process that shares its store: its lease, and the folders that it serves."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.kit.postgres import needs_postgres
from treadle.app.compose import open_runtime, open_store
from treadle.app.settings import Settings, load_settings
from treadle.errors import BadInput
from treadle.log.base import LEASE_SECONDS
from treadle.secrets.keyring import Keyring


def test_the_lease_comes_from_a_flag_or_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert load_settings({}).settings.lease == LEASE_SECONDS == 10
    monkeypatch.setenv("TREADLE_LEASE", "30")
    assert load_settings({}).settings.lease == 30
    assert load_settings({"lease": "2.5"}).settings.lease == 2.5


@pytest.mark.parametrize("lease", ["0", "0.9", "-1", "nan", "inf", "4000"])
def test_a_lease_is_a_second_at_least(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lease: str) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInput, match="it must be from 1 to 3600 seconds"):
        load_settings({"lease": lease})


def test_a_workspace_cannot_set_the_lease(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".treadle").mkdir()
    (tmp_path / ".treadle" / "config.toml").write_text("lease = 1000.0\n")
    monkeypatch.chdir(tmp_path)
    loaded = load_settings({})
    assert loaded.settings.lease == LEASE_SECONDS
    assert any("lease is ignored" in note for note in loaded.ignored)


@needs_postgres
async def test_a_process_says_in_a_shared_store_which_folders_it_serves(postgres_url: str, tmp_path: Path) -> None:
    worktrees, root = tmp_path / "worktrees", tmp_path / "root"
    settings = Settings(
        model="llamacpp:any", store=postgres_url, workspace=str(tmp_path), lease=7, worktree_folder=str(worktrees)
    )
    for roots, expected in (([root], str(root)), (None, str(tmp_path))):
        async with AsyncExitStack() as stack, open_store(settings) as log:
            options = {} if roots is None else {"roots": roots}
            opened = await open_runtime(stack, settings, log, Keyring(), **options)
            async with opened.runtime as runtime:
                (node,) = await log.list_nodes()
                assert (node.roots, node.lease) == ((expected, str(worktrees)), 7)
                assert node.name == runtime.coordinator.owner


async def test_a_store_of_one_machine_has_no_nodes_and_no_roots(tmp_path: Path) -> None:
    settings = Settings(model="llamacpp:any", store=":memory:", workspace=str(tmp_path), lease=7)
    async with AsyncExitStack() as stack, open_store(settings) as log:
        opened = await open_runtime(stack, settings, log, Keyring(), roots=[tmp_path])
        async with opened.runtime as runtime:
            assert runtime.coordinator.claimant.roots is None
            assert runtime.coordinator.claimant.ttl == 7
            assert await log.list_nodes() == []
