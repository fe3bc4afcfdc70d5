"""The rule for the flow of data: text of others, private data, and a way out or a lasting change."""

import pytest

from treadle.permissions.data_flow import SOURCES, Trait, explain_flow_risk, names_address

PAGE: set[Trait] = {"untrusted", "way_out"}
FILE: set[Trait] = {"workspace", "private"}
MESSAGE: set[Trait] = {"private"}


@pytest.mark.parametrize(
    ("own", "seen", "is_asked"),
    [
        ({"way_out"}, {"fetch": PAGE, "read": FILE}, True),
        ({"way_out"}, {"read": FILE}, True),
        ({"lasting"}, {"read": FILE}, True),
        ({"way_out", "private"}, {"fetch": PAGE}, True),
        ({"way_out"}, {"fetch": PAGE}, False),
        ({"way_out"}, {"text:message": MESSAGE}, False),
        ({"way_out", "private"}, {}, False),
        # On the host, text of the workspace counts only where a command is known to send data out.
        ({"way_out", "host", "private"}, {"read": FILE}, False),
        ({"way_out", "host", "private"}, {"read": FILE, "fetch": PAGE}, True),
        ({"way_out", "host", "private", "network"}, {"read": FILE}, True),
        ({"way_out", "host", "private", "lasting"}, {"read": FILE}, True),
    ],
)
def test_a_person_looks_when_text_of_others_and_private_data_meet_an_effect(
    own: set[Trait], seen: dict[str, set[Trait]], is_asked: bool
) -> None:
    assert bool(explain_flow_risk("send", own, seen)) is is_asked


def test_the_reason_names_the_source_the_private_part_and_the_way_out() -> None:
    seen = {name: SOURCES[name].labels for name in ("text:message", "text:instructions")}
    assert explain_flow_risk("fetch_url", {"way_out"}, seen) == (
        "fetch_url can send data out; private data is in reach (the user's message), "
        "and text that others wrote may have asked for it (AGENTS.md and agents of the workspace)"
    )
    many: dict[str, set[Trait]] = {f"tool{number}": FILE for number in range(9)}
    why = explain_flow_risk("remember", {"lasting"}, many)
    assert "what remember changes outlasts this session" in why
    assert "results of tool0, results of tool1, results of tool2 and 6 more" in why


@pytest.mark.parametrize(
    ("text", "address", "is_named"),
    [
        ("Read https://example.org/docs, please.", "https://example.org/docs", True),
        ("Read <https://example.org/docs/>!", "https://example.org/docs", True),
        ("what does example.org say?", "https://example.org/", True),
        ("[docs](https://example.org/a?b=c)", "https://example.org/a?b=c", True),
        ("Read https://example.org/docs", "https://example.org/docs?q=secret", False),
        ("Read https://example.org/docs", "https://example.org/doc", False),
        ("Read https://example.org/docs", "https://example.org", False),
        ("Read https://example.org.evil.net/docs", "https://example.org", False),
        ("", "https://example.org", False),
    ],
)
def test_an_address_counts_as_named_only_as_a_whole_word(text: str, address: str, is_named: bool) -> None:
    assert names_address([text], address) is is_named


def test_only_text_of_strangers_is_a_reason_to_ask_for_a_command_that_reaches_registries_alone() -> None:
    own: frozenset[Trait] = frozenset(("workspace", "private", "way_out", "registries"))
    assert not explain_flow_risk("shell", own, {"read_file": {"workspace", "private"}})
    assert explain_flow_risk("shell", own, {"fetch_url": {"untrusted"}})
    assert explain_flow_risk("shell", own - {"registries"}, {"read_file": {"workspace", "private"}})
    assert explain_flow_risk("shell", own | {"lasting"}, {"read_file": {"workspace", "private"}})
