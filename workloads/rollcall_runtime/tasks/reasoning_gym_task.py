"""Tasks of the package reasoning-gym: questions by number, and how answers are scored.

Source: Stojanovski et al., Reasoning Gym (2025), https://github.com/open-thought/reasoning-gym.
"""

from __future__ import annotations

import difflib
import importlib.util
import sys
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

COLUMN = "reasoning_gym"  # of a row: which question it is
SIZE = 100_000  # questions of a data set whose settings name no `size`; some make all of them

# The package imports these with itself, for a few of its hundred data sets; they have no wheels.
_FOR_A_FEW = ("bfi", "cellpylib", "pycosat", "zss")


class _AbsentPackage(ModuleType):
    """Whatever is called of it raises ImportError."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)

        def absent(*_: object, **__: object) -> None:
            problem = f"this data set needs the package {self.__name__}, which the image lacks"
            raise ImportError(f"{problem}; add it, or take another data set")

        return absent


def import_package() -> Any:
    """The package; ImportError if it is not there."""
    for name in _FOR_A_FEW:
        if name not in sys.modules and importlib.util.find_spec(name) is None:
            sys.modules[name] = _AbsentPackage(name)
    import reasoning_gym  # type: ignore[import-untyped]  # noqa: PLC0415 - slow, not everywhere

    return reasoning_gym


@dataclass(slots=True)
class ReasoningGymTask:
    """The data set `name` with `config`, its own settings; each question always the same.

    Made by `open_task`. What the package raises for a question comes through.
    """

    name: str
    config: Mapping[str, Any]
    questions: Any
    _newest: tuple[int, dict[str, Any]] | None = field(default=None, init=False)

    def __len__(self) -> int:
        return len(self.questions)

    def entry(self, number: int) -> dict[str, Any]:
        """Question `number` as the package has it; the newest is kept, since a group shares it."""
        if self._newest is None or self._newest[0] != number:
            self._newest = number, self.questions[number]
        return self._newest[1]

    def row(self, number: int) -> dict[str, Any]:
        """Question and answer, and in COLUMN what `score` needs to find them again."""
        entry = self.entry(number)
        return {
            "prompt": entry["question"],
            "question": entry["question"],
            "answer": entry["answer"],
            COLUMN: {"name": self.name, "config": dict(self.config), "number": number},
        }

    def score(self, number: int, answer: str | None) -> float:
        """What the data set's own rule gives for `answer`; most give 0 to 1."""
        return float(self.questions.score_answer(answer, self.entry(number)))


def open_task(name: str, config: Mapping[str, Any]) -> ReasoningGymTask:
    """The data set `name`. ImportError, or ValueError that says what is wrong with it."""
    package = import_package()
    if name not in package.factory.DATASETS:
        alike = difflib.get_close_matches(name, package.factory.DATASETS, n=3, cutoff=0.4)
        meant = f"; did you mean {' or '.join(alike)}" if alike else ""
        raise ValueError(f"reasoning-gym has no data set {name!r}{meant}")
    try:
        questions = package.create_dataset(name, **{"seed": 0, "size": SIZE, **config})
    except (TypeError, AssertionError, ValueError) as error:
        text = str(error).replace(f"{type(error).__name__}: ", "") or "a setting is out of bounds"
        raise ValueError(f"reasoning-gym refuses the settings of {name!r}: {text}") from error
    return ReasoningGymTask(name, config, questions)
