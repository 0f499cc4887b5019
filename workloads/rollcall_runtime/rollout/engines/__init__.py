"""Inference engines, one file each, and the registry that finds them."""

from rollcall_runtime.registry import Registry
from rollcall_runtime.rollout.engine import FIELD, InferenceEngine

inference_engines: Registry[InferenceEngine] = Registry(
    kind="inference engine",
    group="rollcall.inference_engines",
    field=f"{FIELD}.name",
    base=InferenceEngine,  # type: ignore[type-abstract]
    builtins={"tiny": "rollcall_runtime.rollout.engines.tiny:TinyEngine"},
)
