"""Kubernetes quantities and decimal strings, parsed strictly and without floats.

Grammar: k8s.io/apimachinery/pkg/api/resource, type Quantity.
"""

import re
from decimal import Decimal

_SUFFIXES = {
    "": Decimal(1),
    **{s: Decimal(10) ** e for s, e in {"n": -9, "u": -6, "m": -3, "k": 3, "M": 6}.items()},
    **{s: Decimal(10) ** e for s, e in {"G": 9, "T": 12, "P": 15, "E": 18}.items()},
    **{s: Decimal(1024) ** e for e, s in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), start=1)},
}
_NUMBER = r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)"
_QUANTITY = re.compile(rf"({_NUMBER})((?:[KMGTPE]i|[numkMGTPE])?|[eE][+-]?[0-9]{{1,3}})")

DECIMAL_PATTERN = "^[0-9]{1,12}([.][0-9]{1,12})?([eE][+-]?[0-9]{1,2})?$"
"""A decimal string of a spec; read the same by Python and by CEL."""
_DECIMAL = re.compile(DECIMAL_PATTERN)


def parse_quantity(text: str) -> Decimal:
    """The amount that a quantity such as "64Mi", "500m" or "1e3" stands for.

    Raises ValueError when it does not parse.
    """
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a quantity; write a number and a suffix, such as 64Mi")
    number, suffix = Decimal(match[1]), match[2]
    if suffix in _SUFFIXES:
        return number * _SUFFIXES[suffix]
    return number.scaleb(int(suffix[1:]))


def parse_decimal(text: str) -> Decimal:
    """A decimal string such as "0.2" or "1e-3"; raises ValueError when it does not parse."""
    if _DECIMAL.fullmatch(text) is None:
        raise ValueError(f"{text!r} is not a decimal string; write it like '0.2' or '1e-3'")
    return Decimal(text)


def is_quantity(text: str) -> bool:
    """Whether `parse_quantity` accepts the text."""
    return _QUANTITY.fullmatch(text) is not None
