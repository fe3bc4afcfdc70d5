"""Known secrets are hidden in each usual spelling, and however a stream is cut."""

import base64
import json
from itertools import pairwise
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.secrets.redact import PLACEHOLDER, RedactedStream, Redactor

SECRET = 'pa55/wörd+"quo\\te"\nline two'


def redact_pieces(redactor: Redactor, text: str, cuts: list[int]) -> str:
    """Redact a text that comes in pieces."""
    stream, places = RedactedStream(redactor), sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    return "".join([*(stream.feed(text[start:end]) for start, end in pairwise(places)), stream.finish()])


@pytest.mark.parametrize(
    "spelled",
    [
        SECRET,
        quote(SECRET),
        quote(SECRET, safe=""),
        quote_plus(SECRET),
        quote(SECRET, safe="").lower().replace("pa55", "pa55"),
        json.dumps(SECRET)[1:-1],
        json.dumps(SECRET, ensure_ascii=False)[1:-1],
    ],
)
def test_a_secret_is_hidden_in_every_usual_spelling(spelled: str) -> None:
    assert Redactor([SECRET]).redact_text(f"before {spelled} after") == f"before {PLACEHOLDER} after"


@pytest.mark.parametrize("before", ["", "u", "us", "use", "user:"])
@pytest.mark.parametrize("after", ["", "x", "xy", "xyz"])
@pytest.mark.parametrize("encode", [base64.b64encode, base64.urlsafe_b64encode])
def test_a_secret_is_hidden_in_base64_at_each_offset(before: str, after: str, encode: type) -> None:
    secret = "hunter2-Ünd-mehr?>"
    text = encode(f"{before}{secret}{after}".encode()).decode()  # type: ignore[attr-defined]
    hidden = Redactor([secret]).redact_text(text)
    assert PLACEHOLDER in hidden and len(hidden.replace(PLACEHOLDER, "")) <= 14


@given(st.text("ab\n", max_size=80), st.text("ab\n", max_size=40), st.integers(1, 80), st.lists(st.integers(0, 400)))
def test_a_secret_is_hidden_in_base64_with_line_breaks(before: str, after: str, width: int, cuts: list[int]) -> None:
    letters = base64.b64encode(f"{before}{SECRET}{after}".encode()).decode()
    text = "\n".join(letters[start : start + width] for start in range(0, len(letters), width))
    redactor = Redactor([SECRET])
    redacted = redact_pieces(redactor, text, cuts)
    assert redacted == redactor.redact_text(text) and PLACEHOLDER in redacted
    core = base64.b64encode(f"{before}{SECRET}".encode()).decode()[-len(SECRET) - 4 : -6]
    assert core not in redacted.replace("\n", "")


def test_text_without_secrets_does_not_change() -> None:
    for redactor in (Redactor([]), Redactor(["", "ab", "     "]), Redactor(["correct horse"])):
        assert redactor.redact_text("nothing ab here") == "nothing ab here"
        assert RedactedStream(redactor).feed("nothing ab her") + "e" == "nothing ab here"


def test_the_longer_of_two_secrets_is_hidden_completely() -> None:
    redactor = Redactor(["abcdef", "abcdefghi"])
    assert redactor.redact_text("abcdefghi abcdef") == f"{PLACEHOLDER} {PLACEHOLDER}"
    stream = RedactedStream(redactor)
    assert stream.feed("abcdef") + stream.feed("ghi") + stream.finish() == PLACEHOLDER


def test_secrets_are_hidden_everywhere_in_a_json_value() -> None:
    value = {"a": ["my topsecret", 5, None, {"topsecret": True}], "b": 1.5}
    assert Redactor(["topsecret"]).redact_value(value) == {
        "a": [f"my {PLACEHOLDER}", 5, None, {PLACEHOLDER: True}],
        "b": 1.5,
    }
    assert Redactor([]).redact_value(value) is value


def test_a_stream_holds_back_only_a_possible_start_of_a_secret() -> None:
    stream = RedactedStream(Redactor(["topsecret"]))
    assert stream.feed("plain text") == "plain tex"
    assert stream.feed("ure, a to") == "ture, a "
    assert stream.feed("y") == "toy"
    assert stream.feed("to") == "" and stream.finish() == "to"


SECRETS = st.text(alphabet='abcß/%+ \n"\\', min_size=6, max_size=12).filter(lambda text: len(text.strip()) >= 6)


@given(
    st.lists(SECRETS, min_size=1, max_size=3), st.lists(st.text(alphabet="abc/ \n", max_size=6), max_size=4), st.data()
)
def test_no_secret_gets_through_a_stream_however_it_is_cut(
    secrets: list[str], around: list[str], data: st.DataObject
) -> None:
    spellings = [
        str,
        quote,
        quote_plus,
        lambda text: json.dumps(text)[1:-1],
        lambda text: base64.b64encode(text.encode()).decode(),
    ]
    pieces = [
        piece + data.draw(st.sampled_from(spellings))(data.draw(st.sampled_from(secrets))) for piece in [*around, ""]
    ]
    text = "".join(pieces)
    redactor = Redactor(secrets)
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=8))
    for left in (redact_pieces(redactor, text, cuts), redactor.redact_text(text)):
        for secret in secrets:
            for form in (secret, quote(secret), json.dumps(secret)[1:-1]):
                assert form not in left.replace(PLACEHOLDER, "\0")


@given(st.text(alphabet="top secret", max_size=40), st.lists(st.integers(0, 40), max_size=6))
def test_a_redacted_stream_equals_the_redacted_text(text: str, cuts: list[int]) -> None:
    redactor = Redactor(["topsecret", "secrets"])
    assert redact_pieces(redactor, text, cuts) == redactor.redact_text(text)
