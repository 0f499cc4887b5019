"""verl's settings as a program reads them: what was given, else verl's default."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from rollcall_local.convert.source import ConvertError, flat

_DEFAULTS = Path(__file__).with_name("verl_defaults.yaml")
_REFERENCE = re.compile(r"\$\{(?:oc\.select:)?\s*([\w.]+?)\s*(?:,\s*(.*))?\}")
_VARIABLE = re.compile(r"\$(?!HOME\b|\{HOME\}|\{[^}]*[.:])")  # of a shell, not of Hydra
_MAX_DEPTH = 8


@dataclass(frozen=True, slots=True)
class Left:
    """A setting that was not carried over as it is: why, and what to do."""

    key: str
    value: Any
    why: str


class VerlSettings:
    """Reads settings, and remembers which were read and what was said about them."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        self._given = dict(given)
        self._defaults = verl_defaults()
        self._read: set[str] = set()
        self._left: dict[str, Left] = {}
        self._unknown = [
            key
            for key, value in given.items()
            if isinstance(value, str) and _VARIABLE.search(value)
        ]

    def given(self, *keys: str) -> bool:
        """Whether the user gave one of them."""
        return any(key in self._given for key in keys)

    def get(self, *keys: str) -> Any:
        """The first that is given and not null, else the default of the first; None without one."""
        self._read.update(keys)
        if not set(keys).isdisjoint(self._unknown):
            names = ", ".join(self._unknown)
            raise ConvertError(
                f"{names}: have variables of the shell, whose values are not known; give them as "
                "arguments, KEY=VALUE"
            )
        for key in keys:
            if self._given.get(key) is not None:
                return self._resolved(key, self._given[key])
        return self._resolved(keys[0], self._defaults.get(keys[0]))

    def number(self, *keys: str) -> float | None:
        """As `get`; ConvertError unless it is a number or null."""
        value = self.get(*keys)
        if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
            return value
        raise ConvertError(f"{self._name(keys)}: must be a number, not {value!r}")

    def whole(self, *keys: str) -> int | None:
        """As `get`; ConvertError unless it is a whole number or null."""
        value = self.number(*keys)
        if value is None or value == int(value):
            return None if value is None else int(value)
        raise ConvertError(f"{self._name(keys)}: must be a whole number, not {value!r}")

    def count(self, *keys: str) -> int:
        """As `whole`, where null and numbers below 1 are errors."""
        value = self.whole(*keys)
        if value is None or value < 1:
            raise ConvertError(f"{self._name(keys)}: must be at least 1, not {value!r}")
        return value

    def flag(self, *keys: str) -> bool:
        """As `get`; ConvertError unless it is true, false or null, which is false."""
        value = self.get(*keys)
        if value is None or isinstance(value, bool):
            return bool(value)
        raise ConvertError(f"{self._name(keys)}: must be True or False, not {value!r}")

    def text(self, *keys: str) -> str:
        """As `get`; empty for null. ConvertError for lists and the like."""
        value = self.get(*keys)
        if isinstance(value, list | dict):
            raise ConvertError(f"{self._name(keys)}: must be text, not {value!r}")
        return "" if value is None else str(value)

    def is_null(self, key: str) -> bool:
        """Whether the user gave it as null."""
        return key in self._given and self._given[key] is None

    def mute(self, *keys: str, why: str) -> None:
        """Those of them that were given, not as verl's default, have no effect."""
        for key in keys:
            if key in self._given and self._given[key] != self._defaults.get(key):
                self._left.setdefault(key, Left(key, self._given[key], why))

    def say(self, key: str, why: str) -> None:
        """A setting, given or not, is not carried over as it is."""
        value = self._given.get(key, self._defaults.get(key))
        self._left.setdefault(key, Left(key, value, why))

    def ending(self, reasons: Mapping[str, str], otherwise: str) -> "Ending":
        """What becomes of all settings; call it last. `reasons` by the beginning of a name."""
        defaults = []
        for key, value in self._given.items():
            if key in self._left or key in self._read:
                continue
            if key in self._defaults and self._defaults[key] == value:
                defaults.append(key)
            else:
                why = next((reasons[r] for r in reasons if key.startswith(r)), otherwise)
                self.say(key, why)
        return Ending(tuple(self._left.values()), tuple(defaults))

    def _resolved(self, key: str, value: Any, depth: int = 0) -> Any:
        if value == "???":
            return None
        if not (isinstance(value, str) and value.startswith("${")):
            return value
        match = _REFERENCE.fullmatch(value)
        if match is None or match[1].startswith(".") or depth == _MAX_DEPTH:
            if match is None and value.startswith("${HOME}"):
                return value
            raise ConvertError(f"{key}: cannot read {value!r}; write the value itself")
        found = self._given.get(match[1], self._defaults.get(match[1]))
        if found is None and match[2] is not None:
            return yaml.safe_load(match[2])
        return self._resolved(match[1], found, depth + 1)

    def _name(self, keys: tuple[str, ...]) -> str:
        return next((key for key in keys if key in self._given), keys[0])


@dataclass(frozen=True, slots=True)
class Ending:
    """What was not carried over, and what was left out as verl's default."""

    left: tuple[Left, ...]
    defaults: tuple[str, ...]

    def lines(self) -> Iterator[str]:
        """For people, one setting a line."""
        for left in self.left:
            value = "" if left.value is None else f"={left.value}"  # what is to be done has none
            yield f"{left.key}{value}: {left.why}"
        if self.defaults:
            yield f"left out, as verl's defaults: {', '.join(self.defaults)}"


def verl_defaults() -> dict[str, Any]:
    """Those of verl 0.9.1, by dotted names."""
    return dict(flat(yaml.safe_load(_DEFAULTS.read_text(encoding="utf-8"))))
