"""Settings for every test, and one secret that none of them may leave anywhere. Fixtures live next to their tests."""

import logging
import os
import secrets
import signal
import subprocess
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from treadle.sandbox import caches
from treadle.tools.files.ripgrep import find_ripgrep

pytest_plugins = ["tests.kit.postgres_fixtures"]

# A deadline measures the machine, not the code, when tests run side by side; so does a check for slow examples. The
# examples are the same every time, so that a run fails for what was changed; `--hypothesis-profile explore` looks for
# new ones.
slow = [HealthCheck.too_slow]
settings.register_profile("same", deadline=None, derandomize=True, suppress_health_check=slow)
settings.register_profile("explore", deadline=None, max_examples=1000, suppress_health_check=slow)
settings.load_profile("same")

# Tests talk to this machine only: a proxy that the environment names is not for them.
for name in ("http_proxy", "https_proxy", "all_proxy"):
    os.environ.pop(name, None)
    os.environ.pop(name.upper(), None)

# What is drawn must not depend on the terminal of whoever starts the tests.
for name in ("TERM", "COLUMNS", "LINES", "NO_COLOR", "TREADLE_GLYPHS", "TREADLE_PLAIN", "TREADLE_MOTION"):
    os.environ.pop(name, None)

# No test leaves an engine behind. Those of kept engines choose their own time.
os.environ["TREADLE_KEEP_LOADED"] = "0"

# A shell without job control ignores these for what it starts in the background, and whoever is started inherits it.
for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """What breaks around the tests, such as a secret left behind, is not one test's failure: it is not tried again."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None and "error" in reporter.stats:
        session.exitstatus = pytest.ExitCode.INTERNAL_ERROR


class _Listening(logging.Handler):
    """Remembers the log lines that give a secret away."""

    def __init__(self, secret: str) -> None:
        super().__init__()
        self.secret, self.leaks = secret, list[str]()

    def emit(self, record: logging.LogRecord) -> None:
        if self.secret in self.format(record):
            self.leaks.append(f"a log line of {record.name}")


@pytest.fixture(scope="session", autouse=True)
def commands_keep_their_caches_among_the_tests_files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Nearly every test has a workspace of its own, and each would leave a cache in the developer's data folder."""
    folder = tmp_path_factory.mktemp("data")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(caches, "find_data_folder", lambda: folder)
        yield


@pytest.fixture(scope="session", autouse=True)
def no_test_leaves_a_secret_behind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A secret is in the environment of every test and of every process that one starts. When all are done it is looked
    for in what they left: stores with their facts and artifacts, files that tools made, and log lines.
    """
    canary = f"canary-{secrets.token_hex(16)}"
    os.environ["SOME_SERVICE_TOKEN"] = canary
    listening = _Listening(canary)
    logging.getLogger().addHandler(listening)
    yield
    logging.getLogger().removeHandler(listening)
    del os.environ["SOME_SERVICE_TOKEN"]
    search = [find_ripgrep(), "--no-config", "-uuu", "--text", "--max-filesize=60M", "-l", "-F", canary]
    # As bytes: some tests leave names that are not UTF-8, and one that cannot be read is told of by its name.
    found = subprocess.run([*search, str(tmp_path_factory.getbasetemp())], capture_output=True, check=False)
    leaks = [*listening.leaks, *map(os.fsdecode, found.stdout.splitlines())]
    assert leaks == [], "a secret of the environment was written down"
