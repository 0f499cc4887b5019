"""Quantities and decimal strings, without floats."""

from decimal import Decimal

import pytest

from rollcall_operator.api.quantity import is_quantity, parse_decimal, parse_quantity


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("1", "1"),
        ("500m", "0.5"),
        ("64Mi", "67108864"),
        ("1.5Gi", "1610612736"),
        ("1e3", "1000"),
        ("1E3", "1000"),
        ("5E", "5000000000000000000"),
        ("2k", "2000"),
        (".5", "0.5"),
        ("5.", "5"),
        ("-1", "-1"),
        ("100n", "1e-7"),
    ],
)
def test_quantities(text: str, amount: str) -> None:
    assert parse_quantity(text) == Decimal(amount)


@pytest.mark.parametrize(
    "text", ["", "lots", "1GB", "1 Gi", "Gi", "1K", "1e", "0x10", "1,5", "--1", "1Mim"]
)
def test_what_is_none(text: str) -> None:
    assert not is_quantity(text)
    with pytest.raises(ValueError, match="is not a quantity; write a number and a suffix"):
        parse_quantity(text)


def test_decimals_are_exact() -> None:
    assert parse_decimal("0.1") + parse_decimal("2e-1") == parse_decimal("0.3")


@pytest.mark.parametrize("text", ["", "nan", "inf", "1e999", "1_0", "٣"])
def test_what_is_no_decimal(text: str) -> None:
    with pytest.raises(ValueError, match="is not a decimal string"):
        parse_decimal(text)
