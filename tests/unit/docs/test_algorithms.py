"""The page about algorithms has the settings that each name stands for, as the code has them."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from rollcall_protocol.algorithm_settings import PRESETS, AlgorithmSettings
from rollcall_protocol.settings_reader import camel_case

PAGE = (Path(__file__).parents[3] / "docs" / "algorithms.md").read_text(encoding="utf-8")
ROWS = dict(re.findall(r"^\| (\S+) \| ([a-z].*?) \| .* \|$", PAGE, re.MULTILINE))
NAMES = {camel_case(field.name): field.name for field in fields(AlgorithmSettings)}


def said(text: str) -> dict[str, object]:
    """Settings as the page writes them, by the names of the code: `clipLow 0.2, objective ppo`."""
    found = re.findall(rf"\b({'|'.join(NAMES)}) ([\w.-]*\w)", text)
    return {NAMES[name]: _value(value) for name, value in found}


def _value(text: str) -> object:
    if text in {"true", "false"}:
        return text == "true"
    return float(text) if re.fullmatch(r"[\d.]+", text) else text


@pytest.mark.parametrize("name", [name for name in PRESETS if name != "grpo"])
def test_a_name_stands_for_the_settings_of_its_row(name: str) -> None:
    assert said(ROWS[name]) == dict(PRESETS[name])


def test_the_other_settings_are_those_of_grpo() -> None:
    table = PAGE.split("| setting of grpo | value |")[1].split("\n\n")[0]
    rows = re.findall(r"^\| (?:with .*: )?(\w+(?:, \w+)*) \| (.*) \|$", table, re.MULTILINE)
    written = {
        NAMES[name]: _value(value)
        for names, values in rows
        for name, value in zip(names.split(", "), values.split(", "), strict=True)
    }
    assert "| all other numbers | 0 |" in table
    others = {name: 0 for name in NAMES.values() if name not in written}
    found = AlgorithmSettings()
    assert written | others == {name: getattr(found, name) for name in NAMES.values()}
