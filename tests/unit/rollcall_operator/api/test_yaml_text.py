"""YAML that every parser reads back the same."""

import pytest
import yaml

from rollcall_operator.api.yaml_text import dump


@pytest.mark.parametrize("text", ["1e-3", "0.2", "1", "-5", "+1", ".5", "1_000", "0o17", "12:30"])
def test_text_that_looks_like_a_number_is_quoted(text: str) -> None:
    assert f"'{text}'" in dump({"a": text})


@pytest.mark.parametrize("value", ["true", "null", "~", "a: b", "", "two\nlines", "100m", "off"])
def test_text_stays_text(value: str) -> None:
    assert yaml.safe_load(dump({"a": value})) == {"a": value}


def test_equal_objects_are_written_out_in_full() -> None:
    shared = {"x": [1]}
    assert "&" not in dump({"a": shared, "b": shared})


def test_keys_keep_their_order_and_documents_are_apart() -> None:
    assert dump({"b": 1, "a": 2}, {"c": 3}) == "---\nb: 1\na: 2\n---\nc: 3\n"
