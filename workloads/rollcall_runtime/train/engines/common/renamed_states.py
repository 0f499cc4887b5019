"""States of models and optimizers under other names: engines' own, and those of a checkpoint.

The states are those that torch.distributed.checkpoint.state_dict gives and takes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def renamed_model(state: Mapping[str, Any], rename: Callable[[str], str]) -> dict[str, Any]:
    """The model's state with each name replaced."""
    return {rename(name): value for name, value in state.items()}


def renamed_optimizer(state: Mapping[str, Any], rename: Callable[[str], str]) -> dict[str, Any]:
    """The optimizer's state with each parameter's name replaced, in its groups, too."""
    groups = [
        {**group, "params": [rename(name) for name in group["params"]]}
        for group in state["param_groups"]
    ]
    return {"state": renamed_model(state["state"], rename), "param_groups": groups}
