"""A call with a way out is asked after the session has seen untrusted text and private data."""

import pytest

from treadle.events import Safety
from treadle.permissions.data_flow import Trait, explain_leak_risk, list_tools_seen


@pytest.mark.parametrize(
    ("own", "safety", "seen", "is_asked"),
    [
        ({"way_out"}, "caution", [{"untrusted"}, {"private"}], True),
        ({"way_out"}, "caution", [{"untrusted", "private"}], True),
        ({"way_out", "private"}, "destructive", [{"untrusted"}], True),
        ({"way_out", "untrusted"}, "caution", [{"private"}], False),
        ({"way_out"}, "caution", [{"untrusted"}], False),
        ({"way_out"}, "caution", [], False),
        ({"way_out"}, "safe", [{"untrusted"}, {"private"}], False),
        ({"private"}, "caution", [{"untrusted"}, {"private"}], False),
    ],
)
def test_private_data_leaves_unasked_only_where_no_untrusted_text_was_read(
    own: set[Trait], safety: Safety, seen: list[set[Trait]], is_asked: bool
) -> None:
    assert bool(explain_leak_risk(own, safety, seen)) is is_asked


def test_a_session_knows_the_results_of_its_own_tools_and_of_the_sessions_it_heard_from() -> None:
    notes = {"treadle.seen.parent": ["fetch"], "treadle.seen.c1": ["read"], "treadle.folder": "src"}
    assert list_tools_seen({"shell"}, notes) == {"shell", "fetch", "read"}
