"""A package registry of the user's own network: its name may have a private address, and commands know it."""

from pathlib import Path

import pytest

from treadle.app.settings import SandboxSettings
from treadle.sandbox.index_settings import build_index_environment
from treadle.sandbox.proxy import ProxyRules, is_public_address
from treadle.sandbox.registries import REGISTRY_HOSTS, are_registries, describe_hosts, expand_hosts

OWN = ("packages.example.org", "mirror.example.org:8443")
RULES = ProxyRules(OWN, own=OWN)


@pytest.fixture(autouse=True)
def no_other_indexes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_CONFIG_FILE", "GOPROXY", "NPM_CONFIG_USERCONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)


def test_an_own_registry_is_reached_at_a_private_address() -> None:
    assert not is_public_address("10.1.2.3")
    assert RULES.can_connect("packages.example.org", 443, "10.1.2.3")
    assert RULES.can_connect("mirror.example.org", 8443, "fd00::7")


@pytest.mark.parametrize(
    ("host", "port", "address"),
    [
        ("evil.example.org", 443, "10.1.2.3"),
        ("packages.example.org", 22, "10.1.2.3"),
        ("mirror.example.org", 443, "10.1.2.3"),
        ("packages.example.org.evil.net", 443, "10.1.2.3"),
        *(("packages.example.org", 443, address) for address in ("127.0.0.1", "::1", "0.0.0.0", "169.254.169.254")),
        *(("packages.example.org", 443, address) for address in ("::ffff:127.0.0.1", "fe80::1%lo", "224.0.0.1")),
    ],
)
def test_no_other_host_and_no_local_address_is_reached(host: str, port: int, address: str) -> None:
    assert not RULES.can_connect(host, port, address)


def test_own_registries_count_among_the_registries() -> None:
    hosts = expand_hosts(("registries",), OWN)
    assert hosts == (*REGISTRY_HOSTS, *OWN) and are_registries(hosts, OWN) and not are_registries(hosts)
    assert describe_hosts(hosts) == "the package registries, packages.example.org, mirror.example.org:8443"


@pytest.mark.parametrize("host", ["*", "*.example.org", "https://example.org/simple", "a b", ""])
def test_an_own_registry_is_one_host_by_its_name(host: str) -> None:
    with pytest.raises(ValueError, match="registries has"):
        SandboxSettings(registries=(host,))


def test_commands_know_the_indexes_of_the_user_without_their_passwords(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / ".config/pip").mkdir(parents=True)
    (tmp_path / ".config/pip/pip.conf").write_text(
        "[global]\nindex-url = https://me:hunter2@packages.example.org/simple\n"
        "extra-index-url =\n  https://mirror.example.org:8443/simple?key=hunter2\n  file:///srv/two\n"
        "  https://hunter2.example.net/hunter2/simple\n  https://[bad/simple\n"
    )
    (tmp_path / ".npmrc").write_text(
        "//packages.example.org/:_authToken=hunter2\nregistry = https://packages.example.org/npm/\n"
    )
    monkeypatch.setenv("GOPROXY", "https://me:hunter2@packages.example.org/go,https://hunter2.example.net,direct")
    assert build_index_environment(OWN) == {
        "PIP_INDEX_URL": "https://packages.example.org/simple",
        "PIP_EXTRA_INDEX_URL": "https://mirror.example.org:8443/simple",
        "npm_config_registry": "https://packages.example.org/npm/",
        "GOPROXY": "https://packages.example.org/go",
    }
    monkeypatch.setenv("PIP_INDEX_URL", "https://pypi.org/simple")
    assert build_index_environment(OWN)["PIP_INDEX_URL"] == "https://pypi.org/simple"


def test_commands_do_not_learn_of_an_index_that_the_user_did_not_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "https://packages.example.org/hunter2/simple")
    assert build_index_environment(()) == {}
    assert build_index_environment(("other.example.org",)) == {}


def test_a_settings_file_that_cannot_be_read_is_no_index(tmp_path: Path) -> None:
    (tmp_path / ".pip").mkdir()
    (tmp_path / ".pip/pip.conf").write_text("no section\n")
    assert build_index_environment(OWN) == {}
