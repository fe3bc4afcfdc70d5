"""`calculate`: arithmetic as people and models write it, exact where it can be.

A parser of its own over fractions; no `eval`. Not algebra: no variables, no units.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from decimal import Context, Decimal
from fractions import Fraction

from msgspec import Struct

from treadle.tools.base import ToolError
from treadle.tools.function import tool

Number = Fraction | float
MAX_CHARACTERS = 1000
MAX_DEPTH = 50
MAX_BITS = 14_000
"""Of an exact number: about 4 200 digits."""

EXACT_PLACES = 20
DIGITS = 12
"""Of a number that has no end, or is not exact."""

_TOKEN = re.compile(
    r"\s*(?:(?P<number>(?:\d{1,3}(?:,\d{3})+(?![\d,])|\d+)(?:\.\d*)?(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?)"
    r"|(?P<name>[^\W\d_]\w*)|(?P<sign>\*\*|//|[-+*/%^(),=?×÷·−]))"
)
_PLAIN_NUMBER = re.compile(r"(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
_SAME = {
    "^": "**",
    "×": "*",
    "·": "*",
    "÷": "/",
    "−": "-",
    "x": "*",
    "times": "*",
    "plus": "+",
    "minus": "-",
    "mod": "%",
}
_BY = re.compile(r"\s+by\b", re.IGNORECASE)


class CalculationError(ToolError):
    """What is wrong with an expression, in words that help to write it again."""


class _Token(Struct, frozen=True):
    kind: str
    text: str
    at: int
    end: int


def evaluate(expression: str) -> str:
    """The value of an expression as a plain number; raises `Problem`."""
    try:
        return _written(_Parser(expression).value())
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


class _Parser:
    """Precedence climbing: sums, products, signs, powers, values. What is read is worked out at once."""

    def __init__(self, expression: str) -> None:
        if len(expression) > MAX_CHARACTERS:
            raise CalculationError(
                f"The expression has {len(expression)} characters; at most {MAX_CHARACTERS} are read. Split it up."
            )
        self._text = expression
        self._tokens = _tokens(expression)
        self._next = 0
        self._depth = 0

    def value(self) -> Number:
        if not self._tokens:
            raise CalculationError("There is no expression. Write one, such as `2 * (3 + 4)`.")
        value = self._sum()
        if (token := self._peek()) is not None:
            raise self._unexpected(token)
        return value

    def _sum(self) -> Number:
        self._deeper()
        value = self._product()
        while sign := self._take("+", "-"):
            begin = self._next
            right = self._product()
            if self._next - begin == 2 and self._tokens[begin + 1].text == "%":
                part = self._tokens[begin].text
                raise CalculationError(
                    f"{part}% of what? Write `A {sign} {part}% of A`, or the fraction as a decimal number."
                )
            value = _checked(value + right if sign == "+" else value - right)
        self._depth -= 1
        return value

    def _product(self) -> Number:
        value = self._signed()
        while True:
            if sign := self._take("*", "of"):
                value = _checked(value * self._signed())
            elif sign := self._take("//", "/"):
                right = self._signed()
                value = _checked(value / right if sign == "/" else _exact(value // right))
            elif self._is_remainder() and self._take("%"):
                value = _checked(value % self._signed())
            else:
                return value

    def _signed(self) -> Number:
        minus = False
        while sign := self._take("-", "+"):
            minus ^= sign == "-"
        value = self._power()
        return -value if minus else value

    def _power(self) -> Number:
        value = self._atom()
        while not self._is_remainder() and self._take("%"):
            value = value / 100
        if self._take("**"):
            self._deeper()
            value = _power(value, self._signed())
            self._depth -= 1
        return value

    def _atom(self) -> Number:
        token = self._peek()
        if token is None:
            raise CalculationError(f"{self._text!r} ends where a number is expected.")
        self._next += 1
        if token.kind == "number":
            return _number(token.text)
        if token.text == "(":
            value = self._sum()
            self._close()
            return value
        if token.kind == "name":
            return self._named(token)
        raise self._unexpected(token)

    def _named(self, token: _Token) -> Number:
        name = token.text
        if name in _CONSTANTS and not self._follows("("):
            return _CONSTANTS[name]
        if name not in _FUNCTIONS:
            known = ", ".join(sorted([*_FUNCTIONS, *_CONSTANTS]))
            raise CalculationError(f"{name!r} is not known here. There are numbers, operators and: {known}.")
        if not self._take("("):
            raise CalculationError(f"{name} needs brackets, such as {name}(2).")
        values: list[Number] = [] if self._follows(")") else [self._sum()]
        while values and self._take(","):
            values.append(self._sum())
        self._close()
        return _applied(name, values)

    def _deeper(self) -> None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise CalculationError(
                f"More than {MAX_DEPTH} brackets or powers stand in one another. Split the expression up."
            )

    def _close(self) -> None:
        if not self._take(")"):
            raise CalculationError(f"A bracket is not closed in {self._text!r}.")

    def _is_remainder(self) -> bool:
        """Whether the `%` that comes next divides (`7 % 3`) or means hundredths (`15% of 80`, `50% * 3`)."""
        if not self._follows("%") or self._next + 1 >= len(self._tokens):
            return False
        sign, after = self._tokens[self._next : self._next + 2]
        if after.text in ("+", "-"):  # as in `7 % -3`, unlike `50% - 3`
            return after.at > sign.end and self._text[after.end : after.end + 1].strip() != ""
        return after.kind == "number" or after.text == "(" or (after.kind == "name" and after.text != "of")

    def _peek(self) -> _Token | None:
        return self._tokens[self._next] if self._next < len(self._tokens) else None

    def _follows(self, text: str) -> bool:
        token = self._peek()
        return token is not None and token.text == text

    def _take(self, *texts: str) -> str:
        token = self._peek()
        if token is None or token.kind == "number" or token.text not in texts:
            return ""
        self._next += 1
        return token.text

    def _unexpected(self, token: _Token) -> CalculationError:
        missing = " An operator such as * may be missing." if token.kind != "sign" or token.text == "(" else ""
        return CalculationError(
            f"{token.text!r} is not expected at character {token.at + 1} of {self._text!r}.{missing}"
        )


def _tokens(expression: str) -> list[_Token]:
    """The words of an expression; a comma parts the arguments of a function, and thousands everywhere else."""
    tokens: list[_Token] = []
    calls: list[bool] = []
    at, end = 0, len(expression)
    while end and (expression[end - 1] in "=?" or expression[end - 1].isspace()):
        end -= 1
    while at < end:
        match = _TOKEN.match(expression, at, end)
        if match is None or match.lastgroup is None:
            at += len(expression[at:end]) - len(expression[at:end].lstrip())
            raise CalculationError(f"{expression[at]!r} at character {at + 1} of {expression!r} is not arithmetic.")
        kind, text, begin, stop = match.lastgroup, match[match.lastgroup], match.start(match.lastgroup), match.end()
        if kind == "number" and calls and calls[-1] and "," in text:
            plain = _PLAIN_NUMBER.match(expression, begin, end)
            assert plain is not None
            text, stop = plain[0], plain.end()
        elif kind == "name":
            text = text.lower()
            if text == "divided" and (by := _BY.match(expression, stop)):
                text, stop = "/", by.end()
            text = _SAME.get(text, text)
            kind = "name" if text[0].isalpha() else "sign"
        else:
            text = _SAME.get(text, text)
        if text == "(":
            calls.append(bool(tokens) and tokens[-1].kind == "name" and tokens[-1].text in _FUNCTIONS)
        elif text == ")" and calls:
            calls.pop()
        tokens.append(_Token(kind, text, begin, stop))
        at = stop
    return tokens


def _number(text: str) -> Fraction:
    digits, _, exponent = text.replace(",", "").lower().partition("e")
    if abs(int(exponent or 0)) > MAX_BITS // 4:
        raise CalculationError(f"{text} is too large or too small to work with.")
    return Fraction(digits.rstrip(".")) * Fraction(10) ** int(exponent or 0)


def _exact(value: Number) -> Number:
    return Fraction(value) if isinstance(value, int) else value


def _checked(value: Number) -> Number:
    """A value that is a number and not too large to go on with."""
    if isinstance(value, Fraction):
        if max(value.numerator.bit_length(), value.denominator.bit_length()) > MAX_BITS:
            raise CalculationError("The result has thousands of digits, which is too large to work out here.")
    elif not math.isfinite(value):
        raise OverflowError
    return value


def _power(base: Number, exponent: Number) -> Number:
    if isinstance(base, Fraction) and isinstance(exponent, Fraction) and exponent.denominator == 1:
        size = max(base.numerator.bit_length(), base.denominator.bit_length())
        if abs(base) not in (0, 1) and size * abs(exponent.numerator) > 2 * MAX_BITS:
            raise CalculationError(f"A power of {_written(exponent)} is too large to work out here.")
        return _checked(_exact(base**exponent.numerator))
    if base < 0 and exponent != int(exponent):
        raise CalculationError("A negative number has no real power that is not whole.")
    return _checked(float(base) ** float(exponent))


def _applied(name: str, values: list[Number]) -> Number:
    fewest, most, function = _FUNCTIONS[name]
    if not fewest <= len(values) <= most:
        takes = str(fewest) if fewest == most else f"{fewest} or more" if most > 2 else f"{fewest} or {most}"
        raise CalculationError(f"{name} takes {takes} numbers, and was given {len(values)}.")
    try:
        return _checked(_exact(function(*values)))
    except ValueError:
        given = ", ".join(_written(value) for value in values)
        raise CalculationError(f"{name}({given}) has no value: it is not defined there.") from None


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


def _abs(value: Number) -> Number:
    return abs(value)


def _least(*values: Number) -> Number:
    return min(values)


def _largest(*values: Number) -> Number:
    return max(values)


def _of_angle(function: Callable[[float], float]) -> Callable[[Number], Number]:
    """The function with nothing in place of what is only the error of a float, as in sin(pi)."""

    def of_angle(angle: Number) -> Number:
        value = function(float(angle))
        return 0.0 if abs(value) < 1e-15 else value

    return of_angle


def _log(value: Number, base: Number | None = None) -> Number:
    found = math.log(value)
    return found if base is None else found / math.log(base)


_CONSTANTS: dict[str, float] = {"pi": math.pi, "π": math.pi, "e": math.e, "tau": math.tau}
_FUNCTIONS: dict[str, tuple[int, int, Callable[..., Number]]] = {
    "sqrt": (1, 1, _sqrt),
    "abs": (1, 1, _abs),
    "round": (1, 2, _round),
    "floor": (1, 1, math.floor),
    "ceil": (1, 1, math.ceil),
    "min": (1, 100, _least),
    "max": (1, 100, _largest),
    "factorial": (1, 1, _factorial),
    "exp": (1, 1, math.exp),
    "ln": (1, 1, _log),
    "log": (1, 2, _log),
    "log10": (1, 1, math.log10),
    "log2": (1, 1, math.log2),
    "sin": (1, 1, _of_angle(math.sin)),
    "cos": (1, 1, _of_angle(math.cos)),
    "tan": (1, 1, _of_angle(math.tan)),
    "asin": (1, 1, math.asin),
    "acos": (1, 1, math.acos),
    "atan": (1, 1, math.atan),
}


def _written(value: Number) -> str:
    """A number for reading: whole if it is, with all its decimals if they end soon, rounded otherwise."""
    if isinstance(value, float):
        return _trimmed(Decimal(format(value, f".{DIGITS}g")))
    if value.denominator == 1:
        return str(value.numerator)
    places = _decimal_places(value.denominator)
    if places is not None and places <= EXACT_PLACES:
        sign, digits = "-" if value < 0 else "", str(abs(value.numerator) * 10**places // value.denominator)
        digits = digits.zfill(places + 1)
        return f"{sign}{digits[:-places]}.{digits[-places:]}"
    context = Context(prec=DIGITS + 3)
    return _trimmed(context.divide(Decimal(value.numerator), Decimal(value.denominator)))


def _decimal_places(denominator: int) -> int | None:
    """How many decimals a fraction in its lowest terms has, if they end."""
    twos = (denominator & -denominator).bit_length() - 1
    rest, fives = denominator >> twos, 0
    while rest % 5 == 0:
        rest, fives = rest // 5, fives + 1
    return max(twos, fives) if rest == 1 else None


def _trimmed(value: Decimal) -> str:
    plain = format(value.normalize(), "f") if -10 <= value.adjusted() < DIGITS else format(value.normalize(), "e")
    return "0" if not value else plain
