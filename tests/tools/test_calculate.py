"""`calculate` against Python's own arithmetic, and what it says of what it cannot work out."""

import json
import math
import re
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.tools.base import ToolContext
from treadle.tools.calculate import CalculationError, calculate, evaluate

WHOLE = st.integers(-10_000, 10_000)


def spread(children: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    binary = st.tuples(children, st.sampled_from(["+", "-", "*", "/", "//"]), children).map(" ".join)
    power = st.tuples(children, st.integers(0, 4)).map(lambda pair: f"({pair[0]}) ** {pair[1]}")
    remainder = st.tuples(children, children).map(lambda pair: f"({pair[0]}) % ({pair[1]})")
    return st.one_of(
        binary, power, remainder, children.map(lambda inside: f"({inside})"), children.map(lambda inside: f"-{inside}")
    )


EXPRESSIONS = st.recursive(st.integers(0, 999).map(str), spread, max_leaves=12)


def compute_with_python(expression: str) -> Fraction | None:
    """Compute an expression with Python and fractions. Return None when it divides by zero."""
    written = re.sub(r"(?<!\*\* )\b(\d+)\b", r"Fraction(\1)", expression)
    try:
        return Fraction(eval(written, {"Fraction": Fraction}))
    except ZeroDivisionError:
        return None


def find_outcome(expression: str) -> str:
    """Return the value, or else the error."""
    try:
        value = evaluate(expression)
    except CalculationError as problem:
        return str(problem)
    return value if math.isfinite(float(value)) or len(value) > 300 else ""


@given(EXPRESSIONS)
def test_an_expression_has_the_value_that_python_gives_it(expression: str) -> None:
    expected, found = compute_with_python(expression), find_outcome(expression)
    if not found[-1:].isdigit():
        assert expected is None or "large" in found or "Split" in found
    elif expected is not None and expected.denominator == 1:
        assert found == str(expected)
    else:
        assert expected is not None
        assert math.isclose(float(found), float(expected), rel_tol=1e-11, abs_tol=1e-300)


@given(WHOLE, st.integers(1, 8))
def test_decimals_are_exact_where_floats_are_not(cents: int, places: int) -> None:
    literal = f"{abs(cents) / 100:.2f}"
    assert Fraction(evaluate(f"{literal} * 3")) == Fraction(literal) * 3
    assert Fraction(evaluate(f"{literal} / 2 ** {places}")) == Fraction(literal) / 2**places


@given(st.integers(0, 10**15))
def test_thousands_separators_change_nothing(number: int) -> None:
    assert evaluate(f"{number:,} + 1") == str(number + 1)


@given(st.text(max_size=60) | st.text("0123456789.,+-*/%^()e ofsqrtlogmaxin", max_size=40))
def test_any_text_has_a_value_or_an_error_and_nothing_else(text: str) -> None:
    assert find_outcome(text)


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("0.1 + 0.2", "0.3"),
        ("2 ^ 10", "1024"),
        ("-2 ** 2", "-4"),
        ("2 ** 3 ** 2", "512"),
        ("2 ** -2", "0.25"),
        ("15% of 80", "12"),
        ("15 % of 1,200", "180"),
        ("10 % 3", "1"),
        ("7 % -3", "-2"),
        ("50% - 3", "-2.5"),
        ("50% of 50% of 8", "2"),
        ("(1 + 2) * 10%", "0.3"),
        ("1,234.5 * 2", "2469"),
        ("1.5e3", "1500"),
        (".5 * 4", "2"),
        ("10 / 3", "3.33333333333333"),
        ("1 / 3 * 3", "1"),
        ("10 ** 20 / 3", "3.33333333333333e+19"),
        ("1e-5", "0.00001"),
        ("sqrt(1/4)", "0.5"),
        ("sqrt(2)", "1.41421356237"),
        ("sin(pi)", "0"),
        ("log(8, 2)", "3"),
        ("log10(1000)", "3"),
        ("ln(e)", "1"),
        ("round(2.5)", "3"),
        ("round(-2.5)", "-3"),
        ("round(2.675, 2)", "2.68"),
        ("round(1234, -2)", "1200"),
        ("max(1, 5, 3) - min(4)", "1"),
        ("abs(-3) + floor(2.7) + ceil(2.1)", "8"),
        ("factorial(20)", "2432902008176640000"),
        ("3 plus 4 times 2", "11"),
        ("100 divided by 8", "12.5"),
        ("12 x 3 = ?", "36"),
        ("6 × 7 − 2", "40"),
        ("10 mod 4", "2"),
    ],
)
def test_arithmetic_is_read_as_people_write_it(expression: str, value: str) -> None:
    assert evaluate(expression) == value


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("", "no expression"),
        ("1 / 0", "divides by zero"),
        ("5 % 0", "divides by zero"),
        ("0 ** -1", "divides by zero"),
        ("9 ** 9 ** 9", "too large"),
        ("10 ** 100000", "too large"),
        ("factorial(5000)", "too large"),
        ("exp(10000)", "too large"),
        ("1e99999", "too large"),
        ("sqrt(-1)", "not defined"),
        ("(-8) ** 0.5", "no real power"),
        ("200 + 10%", "10% of what"),
        ("2(3 + 4)", "operator"),
        ("2 3", "operator"),
        ("(1 + 2", "not closed"),
        ("1 +", "ends where"),
        ("price * 2", "'price' is not known"),
        ("sqrt 4", "brackets"),
        ("round(1, 2, 3)", "takes 1 or 2"),
        ("2 $ 3", "not arithmetic"),
        ("__import__('os')", "not arithmetic"),
        ("(" * 80 + "1" + ")" * 80, "Split"),
        ("1+" * 600 + "1", "at most 1000"),
        ("^".join("1" * 400), "Split"),
        (" * ".join(["9 ** 4000"] * 20), "too large"),
    ],
)
def test_an_expression_without_a_value_is_refused_with_the_reason(expression: str, words: str) -> None:
    with pytest.raises(CalculationError, match=words):
        evaluate(expression)


async def test_every_example_of_the_tool_works(tool_context: ToolContext) -> None:
    calls = [calculate.parse(json.dumps(arguments)) for _, arguments in calculate.spec.examples]
    assert [await calculate.run(parsed, tool_context) for parsed in calls] == ["7", "54", "12.5", "7"]
