"""Functions and constants."""

import math
from collections.abc import Callable

Number = int | float


def round_half_away(value: Number, digits: Number = 0) -> Number:
    """Rounded to so many digits, halves away from zero; a whole number where there are none."""
    factor = 10 ** int(digits)
    rounded = math.floor(abs(value) * factor + 0.5) / factor
    result = math.copysign(rounded, value)
    return int(result) if digits <= 0 else result


# name -> (function, fewest arguments, most arguments)
FUNCTIONS: dict[str, tuple[Callable[..., Number], int, int]] = {
    "abs": (abs, 1, 1),
    "max": (lambda *values: max(values), 1, 99),
    "min": (lambda *values: min(values), 1, 99),
    "round": (round_half_away, 1, 2),
    "sqrt": (math.sqrt, 1, 1),
}
CONSTANTS: dict[str, Number] = {"e": math.e, "pi": math.pi}
