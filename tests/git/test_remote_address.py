"""Addresses of remotes: which are used, which host a person sees, and that no password is shown."""

import pytest

from treadle.git.remote_address import AddressRefused, parse_address

GOOD = [
    ("https://git.example.org/team/app.git", "https", "git.example.org"),
    ("https://git.example.org:8443/app", "https", "git.example.org:8443"),
    ("ssh://git@git.example.org:22/team/app.git", "ssh", "git.example.org:22"),
    ("git@git.example.org:team/app.git", "ssh", "git.example.org"),
    ("Host.Example.org:app", "ssh", "host.example.org"),
    ("git://[::1]:9418/app.git", "git", "[::1]:9418"),
    ("http://git.example.org/app", "http", "git.example.org"),
]
BAD = [
    "",
    "-oProxyCommand=touch",
    "--upload-pack=touch x",
    "ext::sh -c touch",
    "ext::sh",
    "fd::17",
    "http::https://x.org/",
    "ssh://-oProxyCommand=x/y",
    "ssh://git@-host/y",
    "git@-host:path",
    "host:-path",
    "ssh://-user@host/x",
    "ssh://git:s3same@host/x",
    "https://example.org/a b",
    "https://example.org/\n[core]",
    "https://example.org/a\x1b[2J",
    "https://example.org/a?token=x",
    "https://exa\u0435mple.org/a",
    "https://evil.org\\@example.org/",
    "https:///path",
    "file:///etc",
    "/srv/app.git",
    "../app.git",
    "https://name@example.org/app",
    "https://name:s3same@example.org/app",
    "https://" + "a" * 3000,
]


@pytest.mark.parametrize(("text", "scheme", "host"), GOOD)
def test_the_host_of_an_address_is_found(text: str, scheme: str, host: str) -> None:
    address = parse_address(text)
    assert (address.scheme, address.host, address.text) == (scheme, host, text)


@pytest.mark.parametrize("text", BAD)
def test_a_model_cannot_use_an_odd_address(text: str) -> None:
    with pytest.raises(AddressRefused) as refused:
        parse_address(text)
    assert "s3same" not in str(refused.value)


@pytest.mark.parametrize(
    "text", ["https://evil.org@good.org/a", "https://good.org:x@evil.org/a", "https://a@b@c.org/a"]
)
def test_the_host_is_what_stands_after_the_account(text: str) -> None:
    assert parse_address(text, is_configured=True).host == text.rpartition("@")[2].partition("/")[0]


@pytest.mark.parametrize("mark", ["?", "#", ":80?", "a@?", "?a@"])
def test_an_account_cannot_end_the_host_before_the_one_that_is_shown(mark: str) -> None:
    with pytest.raises(AddressRefused):  # git connects to evil.org
        parse_address(f"https://evil.org{mark}@good.org/a", is_configured=True)


def test_the_password_of_a_configured_address_is_used_and_not_shown() -> None:
    address = parse_address("https://bot:s3cr3t-word@example.org/app.git", is_configured=True)
    assert address.text == "https://bot:s3cr3t-word@example.org/app.git"
    assert address.shown == "https://example.org/app.git"
    said = "fatal: unable to access 'https://bot:s3cr3t-word@example.org/app.git/': s3cr3t-word"
    assert address.remove_secrets(said) == "fatal: unable to access 'https://example.org/app.git/': [secret]"


def test_a_folder_is_used_only_if_it_is_configured() -> None:
    assert parse_address("/srv/app.git", is_configured=True).scheme == "file"
    assert parse_address("file:///srv/app.git", is_configured=True).shown == "/srv/app.git"
    with pytest.raises(AddressRefused, match="folder"):
        parse_address("/srv/app.git")


def test_a_person_is_warned_of_what_is_not_encrypted_or_near() -> None:
    assert "not encrypted" in parse_address("http://example.org/a").warning
    assert "this machine" in parse_address("https://127.0.0.1:8420/a").warning
    assert "this machine" in parse_address("https://[::1]/a").warning
    assert "this machine" in parse_address("git@localhost:a").warning
    assert not parse_address("https://example.org/a").warning
