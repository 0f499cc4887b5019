"""`regex`: 1 if a regular expression matches somewhere in the response, or all of it; else 0."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rollcall_runtime.tasks.builtin_rewards.patterns import compiled, matches
from rollcall_runtime.tasks.reward_registry import NamedReward
from rollcall_runtime.worker.engine_config import read_settings


@dataclass(frozen=True, slots=True)
class RegexSettings:
    """The `pattern`, in Python's syntax; a dot matches a new line too. `whole`: of all the text."""

    pattern: str = ""
    whole: bool = False

    def __post_init__(self) -> None:
        """ValueError says what is wrong."""
        if not self.pattern:
            raise ValueError("pattern must be given")
        compiled(self.pattern, "pattern")


class RegexMatch(NamedReward):
    """Matches the text of the response."""

    def __init__(self, config: Mapping[str, Any], *, field: str) -> None:
        self._settings = read_settings(RegexSettings, config, field=field)
        self._pattern = compiled(self._settings.pattern, "pattern")

    def __call__(
        self,
        prompt: Sequence[int],  # noqa: ARG002 - the interface
        response: Sequence[int],  # noqa: ARG002
        *,
        row: Mapping[str, Any],  # noqa: ARG002
        response_text: str,
    ) -> float:
        whole, within = self._settings.whole, self.call_seconds
        return float(matches(self._pattern, response_text, whole=whole, within=within))
