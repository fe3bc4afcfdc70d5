"""For every test of the models: a slow machine must not look like a server that is not there or cannot tell."""

import pytest

from tests.kit.sessions import PATIENCE
from treadle.models import default_model as choose
from treadle.models.http import Transport


@pytest.fixture(autouse=True)
def servers_have_time_to_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "_PATIENCE", PATIENCE)
    monkeypatch.setitem(Transport.fetch_json.__kwdefaults__, "timeout", PATIENCE)
