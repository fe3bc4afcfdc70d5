"""Gives servers time to answer in every test of the models: a slow machine must not look like a missing server."""

import pytest

from tests.kit.sessions import PATIENCE
from treadle.models import default_model
from treadle.models.http import Transport
from treadle.models.remote import RemoteModel


@pytest.fixture(autouse=True)
def servers_have_time_to_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(default_model, "_PROBE_SECONDS", PATIENCE)
    for method in (Transport.fetch_json, RemoteModel.fetch_model_names, RemoteModel.fetch_listed_models):
        monkeypatch.setitem(method.__kwdefaults__, "timeout", PATIENCE)
