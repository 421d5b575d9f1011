"""Plain numbers in answers, read exactly: integers, decimals, fractions, mixed numbers, powers of ten, percents.

What it does: `read_number` turns "1,234.50 km", "\\frac{3}{4}", "x = 1 1/2" or "75%" into an exact `Fraction`;
`same_number` compares. Where a label is a plain number, all is decided here, within microseconds and without sympy.
What it leaves out: anything to be worked out. "17*23" is no number, since a policy would only repeat the question; nor
is a fraction that is not in lowest terms, for the same reason. Sets, intervals and formulas are `math_peer.py`'s.
"""

import re
from dataclasses import dataclass
from fractions import Fraction

MAX_CHARS = 200  # of one number; longer ones are no answer that a person would write
_DIGITS = r"(?:\d{1,3}(?:,\d{3})+|\d{1,3}(?: \d{3})+|\d+)"
_DECIMAL = rf"(?:{_DIGITS}(?:\.\d+)?|\.\d+)"
_FRACTION = re.compile(r"(?P<above>\d+)/(?P<below>\d+)")
_MIXED = re.compile(r"(?P<whole>\d+) (?P<above>\d+)/(?P<below>\d+)")
_E = rf"(?P<with_e>{_DECIMAL})e\+?(?P<e>-?\d{{1,3}})"
_TEN = rf"(?:(?P<times>{_DECIMAL})\*)?10(?:\^|\*\*)\(?(?P<ten>-?\d{{1,3}})\)?"
_POWER = re.compile(f"{_E}|{_TEN}", re.IGNORECASE)
_DRESSED = re.compile(r"\\(?:boxed|fbox|text|mathrm)\s*\{([^{}]*(?:\{[^{}]*\}[^{}]*)*)\}")
_CURRENCY = "$€£¥₹₽"
_WORD = r"[^\W\d_]+[²³]?(?:\^?[23]\b)?|°[cfk]?"
_UNIT = re.compile(rf"(?:{_WORD})(?:(?:\s*/\s*|\s+)(?:{_WORD})){{0,2}}")
_SCALES = {"dozen": 12, "hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_NO_UNIT = {  # what makes two values of one, or a value to be worked out
    "or", "and", "to", "not", "no", "if", "pi", "e", "i", "x", "y", "z", "n", "sqrt", "plus", "minus", "times",
    "versus", "vs", "against", "than", "but", "nor", "either", "maybe", "perhaps", "is", "are", "was", "isn",
    "over", "divided", "by", "squared", "cubed", "factorial", "until", "through", "between", "half", "halves",
    "third", "thirds", "fourths", "fifths", "percent", "zero", "one", "two", "three", "four", "five", "six",
    "seven", "eight", "nine", "ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen",
    "eighteen", "nineteen", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety", *_SCALES,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class PlainNumber:
    """A number and how it was written."""

    value: Fraction
    percent: bool = False
    unit: str = ""  # in small letters, "" where none was given


def tidy(text: str) -> str:
    """The text without what only dresses it: delimiters of mathematics, \\boxed, \\text, bold, a last full stop."""
    text = text.strip().replace("−", "-").replace("\u00a0", " ").replace("\u202f", " ")
    previous = None
    while previous != text:
        previous = text
        for left, right in (("**", "**"), ("$$", "$$"), ("\\(", "\\)"), ("\\[", "\\]"), ("`", "`"), ("$", "$")):
            if len(text) > len(left) + len(right) and text.startswith(left) and text.endswith(right):
                text = text[len(left) : -len(right)].strip()
        if (inside := _DRESSED.fullmatch(text)) is not None:
            text = inside[1].strip()
        text = re.sub(r"(?<=[\w%)}$*\]])\s*\.$", "", text).strip()
    return text


def _flat(text: str) -> str:
    """Simple LaTeX as plain text: \\frac{3}{4} is 3/4, \\times is *, {,} is a comma."""
    text = re.sub(r"\\[dt]?frac\s*(\d)\s*(\d)(?!\d)", r" \1/\2", text)
    text = re.sub(r"\\[dt]?frac\s*\{\s*(\d+)\s*\}\s*\{\s*(\d+)\s*\}", r" \1/\2", text)
    text = re.sub(r"\\(?:text|mathrm)\s*\{([^{}]*)\}", r" \1", text)
    text = text.replace("{,}", ",").replace("\\%", "%").replace("\\$", "$").replace("\\!", "")
    text = re.sub(r"\\[,;: ]", " ", text)
    text = re.sub(r"^\\[dt]?frac\s*\{\s*-\s*(\d+)\s*\}\s*\{\s*(\d+)\s*\}", r"-\1/\2", text)
    text = re.sub(r"(?<=\d) ?[xX] ?(?=10(?:\^|\*\*))", "*", text)
    text = re.sub(r"\s*(?:\\times|\\cdot|×|·|\*(?!\*))\s*10", "*10", text)
    text = re.sub(r"\^\s*\{\s*(-?\d+)\s*\}", r"^\1", text)
    text = re.sub(r"\^\{?\\circ\}?", "°", text)
    return re.sub(r"\s+", " ", text).strip()


def _fraction(text: str) -> Fraction | None:
    if re.fullmatch(_DECIMAL, text):
        return Fraction(text.replace(",", "").replace(" ", ""))
    whole = 0
    if (found := _MIXED.fullmatch(text)) is not None:
        whole = int(found["whole"])
    elif (found := _FRACTION.fullmatch(text)) is None:
        if (power := _POWER.fullmatch(text)) is None:
            return None
        number = Fraction((power["with_e"] or power["times"] or "1").replace(",", "").replace(" ", ""))
        return number * Fraction(10) ** int(power["e"] or power["ten"])
    above, below = int(found["above"]), int(found["below"])
    if below < 2 or Fraction(above, below).denominator != below:
        return None
    return whole + Fraction(above, below)


def read_number(text: str) -> PlainNumber | None:
    """The one plain number that the text is, or None."""
    if len(text) > MAX_CHARS or "\n" in text.strip():
        return None
    text = _flat(tidy(text))
    text = re.sub(r"^[A-Za-z]\w{0,20} ?= ?", "", text)
    sign = 1
    if (signed := re.match(r"([+-]) ?", text)) is not None:
        sign, text = (-1 if signed[1] == "-" else 1), text[signed.end() :]
    text = text.removeprefix(text[0]).strip() if text[:1] and text[0] in _CURRENCY else text
    number, unit = text, ""
    if (value := _fraction(number)) is None:
        split = re.fullmatch(r"(.*?\d)\s*(%|[^\d.,\s/+*^!()<>=:;|-].*)", text)
        if split is None or (value := _fraction(split[1])) is None:
            return None
        scale, _, rest = split[2].strip().lower().partition(" ")
        unit = rest.strip() if scale in _SCALES else split[2].strip().lower()
        value *= _SCALES.get(scale, 1)
    percent = unit in ("%", "percent", "per cent")
    if unit and not percent and unit not in _CURRENCY:
        words = re.findall(r"[^\W\d_]+", unit)
        if not _UNIT.fullmatch(unit) or _NO_UNIT & set(words):
            return None
    return PlainNumber(sign * value, percent, "" if percent else unit)


def same_number(label: PlainNumber, answer: PlainNumber, tolerance: Fraction | None) -> bool:
    """Whether the answer is the label's value.

    Without a tolerance whole numbers are exact, others agree to six decimals (small ones to four digits).
    Where the label is a percent, 50%, the answer is 50%, 0.5, or 50 where the question asks "what percent". Where it is
    none, 0.5, a percent is its hundredth; itself too only if the label is more than 1, as 40% for the label 40.
    """
    if label.unit and answer.unit and label.unit.rstrip("s") != answer.unit.rstrip("s"):
        return False
    if tolerance is None:
        whole = label.value.denominator == 1 and answer.value.denominator == 1 and not answer.percent
        tolerance = Fraction(0) if whole else min(Fraction(1, 2_000_000), abs(label.value) / 20_000)
    meant, said = [label.value], [answer.value]
    if label.percent and not answer.percent:
        meant.append(label.value / 100)
    elif answer.percent and not label.percent:
        said = [answer.value / 100] + said * (abs(label.value) > 1)
    return any(abs(one - other) <= tolerance for one in meant for other in said)
