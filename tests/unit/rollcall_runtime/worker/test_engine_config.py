"""An engine's free-form config becomes that engine's dataclass, or an error that names the key."""

from dataclasses import dataclass
from typing import Any

import pytest

from rollcall_runtime.worker.engine_config import read_settings
from rollcall_runtime.worker.errors import SpecError


@dataclass(frozen=True, slots=True)
class Settings:
    max_tokens: int = 6
    weight_decay: float = 0.5
    eager: bool = False
    name: str = "x"

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise ValueError("maxTokens must be at least 1")


KNOWN = "eager, maxTokens, name, weightDecay"


def read(config: dict[str, Any]) -> Settings:
    return read_settings(Settings, config, field="spec.engine.config")


def test_what_is_left_out_keeps_its_default() -> None:
    assert read({}) == Settings()


def test_camel_case_keys_and_decimal_strings_are_read() -> None:
    config = {"maxTokens": 8, "weightDecay": "1e-2", "eager": True, "name": "y"}
    assert read(config) == Settings(8, 0.01, eager=True, name="y")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"maxToken": 8}, f"spec.engine.config.maxToken: unknown setting; known: {KNOWN}"),
        ({"maxTokens": "8"}, "spec.engine.config.maxTokens: '8' is not of type int"),
        ({"maxTokens": True}, "spec.engine.config.maxTokens: True is not of type int"),
        ({"weightDecay": "much"}, "spec.engine.config.weightDecay: 'much' is not a decimal number"),
        ({"weightDecay": True}, "spec.engine.config.weightDecay: True is not of type float"),
        ({"maxTokens": 0}, "spec.engine.config: maxTokens must be at least 1"),
    ],
)
def test_a_wrong_setting_is_named(config: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError) as caught:
        read(config)
    assert str(caught.value) == message
