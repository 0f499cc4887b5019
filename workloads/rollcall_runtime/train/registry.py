"""The training engines that there are."""

from rollcall_runtime.registry import Registry
from rollcall_runtime.train.engine import FIELD, TrainEngine

train_engines: Registry[TrainEngine] = Registry(
    kind="training engine",
    group="rollcall.train_engines",
    field=f"{FIELD}.name",
    base=TrainEngine,  # type: ignore[type-abstract]
    builtins={"fsdp2": "rollcall_runtime.train.engines.fsdp2:Fsdp2Engine"},
)
