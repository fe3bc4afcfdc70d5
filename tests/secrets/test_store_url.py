"""URLs of stores on PostgreSQL: what libpq gets, and that no password is shown, not even of a wrong URL."""

import pytest

from treadle.app.settings import Settings
from treadle.errors import BadInput
from treadle.secrets.store_url import hide_password, parse_postgres_url

PASSWORD = "hunter2secret"
BAD_URLS = (
    f"postgresql://ada:{PASSWORD}@@host/db",
    f"postgresql://ada:x/{PASSWORD}@host/db",
    f"postgresql://ada:{PASSWORD}@x@host/db",
    f"postgresql://ada:{PASSWORD}@host:99999/db",
    f"postgresql://ada:{PASSWORD}@host:54 32/db",
    f"postgresql://ada:{PASSWORD}@host/db?passwort={PASSWORD}",
    f"postgresql://ada@host/db?{PASSWORD}=1",
    f"postgresql://ada:x?{PASSWORD}/@host/db",
    f"postgresql://ada:{PASSWORD}@host/db?sslmode",
    f"postgresql://ada:{PASSWORD}@host/db?listen=postgresql://other",
    "postgresql://",
)


def test_several_hosts_and_options_reach_libpq_as_they_are() -> None:
    url = parse_postgres_url("postgres://ada:p%40ss@one,two:5433/db?sslmode=require&target_session_attrs=read-write")
    assert url.connect == "postgresql://ada:p%40ss@one,two:5433/db?sslmode=require&target_session_attrs=read-write"
    assert (url.listen, url.password) == (url.connect, "p@ss")


def test_listen_is_an_address_of_its_own_and_no_option_of_libpq() -> None:
    url = parse_postgres_url("postgresql://ada@pooler:6432/db?listen=one:5432%2Ctwo&port=6432&sslmode=require")
    assert url.connect == "postgresql://ada@pooler:6432/db?port=6432&sslmode=require"
    assert url.listen == "postgresql://ada@one:5432,two/db?sslmode=require"


@pytest.mark.parametrize("address", ["[::1]:5432/db", "/db?host=/run/postgresql", "%2Frun%2Fpostgresql/db", "host"])
def test_other_addresses_of_libpq_are_taken(address: str) -> None:
    assert parse_postgres_url(f"postgresql://{address}").connect == f"postgresql://{address}"


@pytest.mark.parametrize("url", BAD_URLS)
def test_a_wrong_url_is_explained_without_its_password(url: str) -> None:
    with pytest.raises(BadInput, match="the URL of the store is wrong: ") as caught:
        Settings(store=url)
    assert PASSWORD not in str(caught.value) and PASSWORD not in hide_password(url)


def test_a_password_is_hidden_wherever_it_stands() -> None:
    shown = hide_password(
        f"cannot open 'postgresql://ada:{PASSWORD}@one,two:5433/db?sslmode=require&password={PASSWORD}', "
        f"nor postgres://ada:hunter%40{PASSWORD}@host"
    )
    assert shown == (
        "cannot open 'postgresql://ada:***@one,two:5433/db?sslmode=require&password=***', nor postgres://ada:***@host"
    )
    assert hide_password("/data/x.db") == "/data/x.db"
    assert Settings(store=f"postgresql://ada:{PASSWORD}@h/db").store_name == "postgresql://ada:***@h/db"
