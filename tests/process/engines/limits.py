"""What an engine of this repository cannot do: the only cases that the suite may skip for it.

The limits of a plug-in are `LIMITS` of `tests.plugins.trainers.<name>.limits`. An engine of another
distribution needs none: its cases are skipped as it says.
"""

import importlib
from dataclasses import dataclass

from rollcall_protocol.train_settings import BUILT_IN

CORE = "fsdp2"


@dataclass(frozen=True, slots=True)
class Limits:
    """What one engine lacks.

    Attributes:
        lacks: settings and heads that the engine does not have at all.
        refuses: values of settings that the engine has, but refuses on a CPU.
    """

    lacks: frozenset[str] = frozenset()
    refuses: frozenset[tuple[str, object]] = frozenset()


_CORE_LIMITS = Limits(frozenset({"tensor_parallel", "pipeline_parallel", "sequence_parallel"}))


def limits_of(name: str) -> Limits | None:
    """The limits of an engine of this repository; None for another distribution's."""
    if name == CORE:
        return _CORE_LIMITS
    if name not in BUILT_IN:
        return None
    found: Limits = importlib.import_module(f"tests.plugins.trainers.{name}.limits").LIMITS
    return found
