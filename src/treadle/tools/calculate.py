"""`calculate`: arithmetic as people and models write it, exact where possible.

The expression is rewritten as Python, parsed by `ast` and computed over fractions. Nothing is passed to `eval`.
Variables and units are not supported.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Context, Decimal
from fractions import Fraction

from msgspec import Struct

from treadle.tools.base import ToolError
from treadle.tools.function import tool

Number = Fraction | float
MAX_CHARACTERS = 1000
MAX_BRACKETS = 50
MAX_DEPTH = 200
MAX_BITS = 14_000
"""The size of an exact number: about 4 200 digits."""

EXACT_PLACES = 20
DIGITS = 12
"""How many digits are shown of a number that is not exact or whose decimals do not end."""

_TOKEN = re.compile(
    r"\s*(?:(?P<number>(?:\d{1,3}(?:,\d{3})+(?![\d,])|\d+)(?:\.\d*)?(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?)"
    r"|(?P<name>[^\W\d_]\w*)|(?P<sign>\*\*|//|[-+*/%^(),×÷·−]))"
)
_PLAIN_NUMBER = re.compile(r"(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
_ENDING = re.compile(r"[\s=?]+\Z")
_BY = re.compile(r"\s+by\b", re.IGNORECASE)
_SYNONYMS = {
    "^": "**",
    "×": "*",
    "·": "*",
    "÷": "/",
    "−": "-",
    "x": "*",
    "times": "*",
    "of": "*",
    "plus": "+",
    "minus": "-",
    "mod": "%",
}
_TOO_DEEP = f"More than {MAX_BRACKETS} brackets or powers are nested. Split the expression up."


class CalculationError(ToolError):
    """An expression cannot be computed. The text says why and helps to write it again."""


def evaluate(expression: str) -> str:
    """Compute an expression and return a plain number; raises `CalculationError`."""
    try:
        return _format_number(_compute(*_parse(expression)))
    except ZeroDivisionError:
        raise CalculationError(f"{expression!r} divides by zero, so it has no value.") from None
    except OverflowError:
        raise CalculationError(f"{expression!r} is too large to work out.") from None


@tool(
    safety="safe",
    timeout=10,
    examples=[
        ("What is 3 plus 4?", {"expression": "3 + 4"}),
        ("Multiply 6 by 9", {"expression": "6 * 9"}),
        ("How much is 100 divided by 8?", {"expression": "100 / 8"}),
        ("Subtract 5 from 12", {"expression": "12 - 5"}),
    ],
)
def calculate(expression: str) -> str:
    """Work out an arithmetic expression.

    Knows + - * / // % ** ( ), 1,234.5, 2e6, `15% of 80`, pi, e, and sqrt, exp, ln, log(x) (natural), log(x, base),
    log10, log2, sin, cos, tan, asin, acos, atan (radians), abs, round(x, places) (halves away from zero), floor, ceil,
    min, max, factorial. Examples: `(2 + 3) * 4`, `15% of 1,200`, `round(10 / 3, 2)`, `sqrt(2) * 10`.

    Args:
        expression: what to work out, such as `12.5 * (3 + 4)`
    """
    return evaluate(expression)


class _Token(Struct, frozen=True):
    kind: str
    text: str
    start: int
    end: int


def _read_tokens(expression: str) -> list[_Token]:
    """Split an expression. A comma separates the arguments of a function; elsewhere it separates thousands."""
    tokens: list[_Token] = []
    calls: list[bool] = []  # for each open bracket, whether it belongs to a function
    position, end = 0, len(_ENDING.sub("", expression))
    while position < end:
        match = _TOKEN.match(expression, position, end)
        if match is None or match.lastgroup is None:
            position = end - len(expression[position:end].lstrip())
            raise CalculationError(
                f"{expression[position]!r} at character {position + 1} of {expression!r} is not arithmetic."
            )
        kind, start, position = match.lastgroup, match.start(match.lastgroup), match.end()
        text = match[kind].lower()
        if kind == "number" and calls and calls[-1] and (plain := _PLAIN_NUMBER.match(expression, start, end)):
            text, position = plain[0].lower(), plain.end()
        elif text == "divided" and (by := _BY.match(expression, position, end)):
            text, position = "/", by.end()
        text = _SYNONYMS.get(text, text)
        if kind == "name" and not text[0].isalpha():
            kind = "sign"
        if text == "(":
            calls.append(bool(tokens) and tokens[-1].text in _FUNCTIONS)
            if len(calls) > MAX_BRACKETS:
                raise CalculationError(_TOO_DEEP)
        elif text == ")" and calls:
            calls.pop()
        tokens.append(_Token(kind, text, start, position))
    return tokens


def _parse(expression: str) -> tuple[ast.expr, Mapping[str, Number]]:
    """Parse an expression as Python, in which names such as `n0` stand for its numbers. Return these as well."""
    if len(expression) > MAX_CHARACTERS:
        raise CalculationError(
            f"The expression has {len(expression)} characters; at most {MAX_CHARACTERS} are read. Split it up."
        )
    tokens = _read_tokens(expression)
    if not tokens:
        raise CalculationError("There is no expression. Write one, such as `2 * (3 + 4)`.")
    words: list[str] = []
    values: dict[str, Number] = dict(_CONSTANTS)
    after_value = False
    for index, token in enumerate(tokens):
        word, following = token.text, tokens[index + 1].text if index + 1 < len(tokens) else ""
        starts_value = token.kind != "sign" or word == "("
        is_expected = not starts_value if after_value else starts_value or word in ("+", "-")
        if not is_expected:
            missing = " An operator such as * may be missing." if after_value else ""
            raise CalculationError(
                f"{word!r} is not expected at character {token.start + 1} of {expression!r}.{missing}"
            )
        if token.kind == "number":
            word = f"n{index}"
            digits, _, exponent = token.text.replace(",", "").partition("e")
            if len(exponent) > 6 or abs(int(exponent or 0)) > MAX_BITS // 4:
                raise CalculationError(f"{token.text} is too large or too small to work with.")
            values[word] = Fraction(digits.rstrip(".")) * Fraction(10) ** int(exponent or 0)
        elif token.kind == "name" and word not in _CONSTANTS and word not in _FUNCTIONS:
            known = ", ".join(sorted([*_FUNCTIONS, *_CONSTANTS]))
            raise CalculationError(f"{word!r} is not known here. There are numbers, operators and: {known}.")
        elif word in _FUNCTIONS and following != "(":
            raise CalculationError(f"{word} needs brackets, such as {word}(2).")
        elif word == "%" and _is_percent(expression, tokens, index, words):
            word = ".percent"
        words.append(word)
        after_value = token.kind == "number" or word in (")", ".percent") or word in _CONSTANTS
    if not after_value:
        raise CalculationError(f"{expression!r} ends where a number is expected.")
    try:
        return ast.parse(" ".join(words), mode="eval").body, values
    except SyntaxError:
        raise CalculationError(f"A bracket is not closed or not opened in {expression!r}.") from None


def _is_percent(expression: str, tokens: Sequence[_Token], index: int, words: Sequence[str]) -> bool:
    """Tell whether a `%` means hundredths (`15% of 80`, `50% * 3`) or divides (`7 % 3`). `words` are those before it.

    `200 + 10%` is refused, because it can mean 200.1 or 220.
    """
    sign, after = tokens[index], tokens[index + 1] if index + 1 < len(tokens) else None
    if after is not None and after.text in ("+", "-"):  # `7 % -3` divides, `50% - 3` does not
        if after.start > sign.end and expression[after.end : after.end + 1].strip():
            return False
    elif after is not None and (after.kind != "sign" or after.text == "("):
        return False
    ends_term = after is None or after.text in ("+", "-", ")", ",")
    if ends_term and tokens[index - 1].kind == "number" and words[-2:-1] in (["+"], ["-"]) and len(words) > 2:
        if tokens[index - 3].kind != "sign" or words[-3] in (")", ".percent"):
            part = tokens[index - 1].text
            raise CalculationError(
                f"{part}% of what? Write `A {words[-2]} {part}% of A`, or the fraction as a decimal number."
            )
    return True


def _compute(node: ast.expr, values: Mapping[str, Number], depth: int = 0) -> Number:
    """Compute a parsed expression. The left side of a long sum is a deep tree, so that side is a loop."""
    if depth > MAX_DEPTH:
        raise CalculationError(_TOO_DEEP)
    operations: list[ast.BinOp] = []
    while isinstance(node, ast.BinOp):
        operations.append(node)
        node = node.left
    match node:
        case ast.Name(id=name):
            value = values[name]
        case ast.Attribute(value=inner):
            value = _compute(inner, values, depth + 1) / 100
        case ast.UnaryOp(op=sign, operand=operand):
            value = _compute(operand, values, depth + 1)
            value = -value if isinstance(sign, ast.USub) else value
        case ast.Call(func=ast.Name(id=name), args=arguments):
            given = [_compute(argument, values, depth + 1) for argument in arguments]
            fewest, most, function = _FUNCTIONS[name]
            if not fewest <= len(given) <= most:
                takes = str(fewest) if fewest == most else f"{fewest} or more" if most > 2 else f"{fewest} or {most}"
                raise CalculationError(f"{name} takes {takes} numbers, and was given {len(given)}.")
            try:
                value = _limit_size(function(*given))
            except ValueError:
                listed = ", ".join(map(_format_number, given))
                raise CalculationError(f"{name}({listed}) has no value: it is not defined there.") from None
        case _:
            raise CalculationError("A comma separates thousands or the arguments of a function, and nothing else.")
    for operation in reversed(operations):
        operate = _OPERATIONS[type(operation.op)]
        value = _limit_size(operate(value, _compute(operation.right, values, depth + 1)))
    return value


def _limit_size(value: Number) -> Number:
    """Return a value that is exact where it can be; raises when it is too large to go on with."""
    value = Fraction(value) if isinstance(value, int) else value
    if isinstance(value, float) and not math.isfinite(value):
        raise OverflowError
    if isinstance(value, Fraction) and max(value.numerator.bit_length(), value.denominator.bit_length()) > MAX_BITS:
        raise CalculationError("The result has thousands of digits, which is too large to work out here.")
    return value


def _raise_to_power(base: Number, exponent: Number) -> Number:
    if isinstance(base, Fraction) and isinstance(exponent, Fraction) and exponent.denominator == 1:
        size = max(base.numerator.bit_length(), base.denominator.bit_length())
        if abs(base) not in (0, 1) and size * abs(exponent.numerator) > 2 * MAX_BITS:
            raise CalculationError(f"A power of {_format_number(exponent)} is too large to work out here.")
        return base**exponent.numerator
    if base < 0 and exponent != int(exponent):
        raise CalculationError("A negative number has no real power that is not whole.")
    return float(base) ** float(exponent)


def _sqrt(value: Number) -> Number:
    if isinstance(value, Fraction) and value >= 0:
        top, bottom = math.isqrt(value.numerator), math.isqrt(value.denominator)
        if top * top == value.numerator and bottom * bottom == value.denominator:
            return Fraction(top, bottom)
    return math.sqrt(value)


def _round(value: Number, places: Number = Fraction(0)) -> Number:
    if places != int(places) or abs(places) > 300:
        raise ValueError(places)
    unit = Fraction(10) ** -int(places)
    halves = abs(Fraction(value)) / unit + Fraction(1, 2)
    return unit * math.floor(halves) * (1 if value >= 0 else -1)


def _factorial(value: Number) -> Number:
    if value != int(value) or value < 0:
        raise ValueError(value)
    if value > 1000:
        raise OverflowError
    return Fraction(math.factorial(int(value)))


def _ignore_rounding(function: Callable[[float], float]) -> Callable[[Number], Number]:
    """Wrap a function of angles, so that the rounding error of a float is 0, as in sin(pi)."""

    def compute(angle: Number) -> Number:
        value = function(float(angle))
        return 0.0 if abs(value) < 1e-15 else value

    return compute


def _log(value: Number, base: Number | None = None) -> Number:
    found = math.log(value)
    return found if base is None else found / math.log(base)


_OPERATIONS: dict[type[ast.operator], Callable[[Number, Number], Number]] = {
    ast.Add: lambda left, right: left + right,
    ast.Sub: lambda left, right: left - right,
    ast.Mult: lambda left, right: left * right,
    ast.Div: lambda left, right: left / right,
    ast.FloorDiv: lambda left, right: left // right,
    ast.Mod: lambda left, right: left % right,
    ast.Pow: _raise_to_power,
}
_CONSTANTS: dict[str, float] = {"pi": math.pi, "π": math.pi, "e": math.e, "tau": math.tau}
_FUNCTIONS: dict[str, tuple[int, int, Callable[..., Number]]] = {
    "sqrt": (1, 1, _sqrt),
    "abs": (1, 1, lambda *values: abs(*values)),
    "round": (1, 2, _round),
    "floor": (1, 1, math.floor),
    "ceil": (1, 1, math.ceil),
    "min": (1, 100, lambda *values: min(values)),
    "max": (1, 100, lambda *values: max(values)),
    "factorial": (1, 1, _factorial),
    "exp": (1, 1, math.exp),
    "ln": (1, 1, _log),
    "log": (1, 2, _log),
    "log10": (1, 1, math.log10),
    "log2": (1, 1, math.log2),
    "sin": (1, 1, _ignore_rounding(math.sin)),
    "cos": (1, 1, _ignore_rounding(math.cos)),
    "tan": (1, 1, _ignore_rounding(math.tan)),
    "asin": (1, 1, math.asin),
    "acos": (1, 1, math.acos),
    "atan": (1, 1, math.atan),
}


def _format_number(value: Number) -> str:
    """Write a number: a whole one as it is, one with few decimals exactly, any other rounded."""
    if isinstance(value, float):
        return _trim_zeros(Decimal(format(value, f".{DIGITS}g")))
    if value.denominator == 1:
        return str(value.numerator)
    if 10**EXACT_PLACES % value.denominator == 0:
        sign = "-" if value < 0 else ""
        digits = str(abs(value.numerator) * 10**EXACT_PLACES // value.denominator).zfill(EXACT_PLACES + 1)
        return f"{sign}{digits[:-EXACT_PLACES]}.{digits[-EXACT_PLACES:].rstrip('0')}"
    context = Context(prec=DIGITS + 3)
    return _trim_zeros(context.divide(Decimal(value.numerator), Decimal(value.denominator)))


def _trim_zeros(value: Decimal) -> str:
    if not value:
        return "0"
    return format(value.normalize(), "f" if -10 <= value.adjusted() < DIGITS else "e")
