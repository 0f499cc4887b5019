"""What is asked of a model in one way in transformers 5 and in another in 4.57.

Images for Ascend have 4.57 (docs/devices.md).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
import transformers

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch import nn

_RELEASE = int(transformers.__version__.partition(".")[0])
_NAMES_ROPE_PARAMETERS = _COMPUTES_BUFFERS = _CONVERTS_WEIGHTS = 5

CANNOT_BUILD = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    MemoryError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""What transformers raises for a configuration that it reads and cannot build or compute."""

STORED = "stores {} in another form than transformers' model holds it, which is not supported"
"""What is wrong with an architecture of which `stored_otherwise` gives a tensor."""


def config_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Those of a config.json, as this release of transformers names them.

    4.57 passes over `rope_parameters`, which 5 writes, and would place tokens elsewhere. 5 writes
    an infinite number as an object, which only its own way of reading a file undoes.
    """
    undo = getattr(transformers.PretrainedConfig, "_decode_special_floats", dict)
    given: dict[str, Any] = undo(dict(values))
    rope = given.get("rope_parameters")
    if _RELEASE >= _NAMES_ROPE_PARAMETERS or not isinstance(rope, dict):
        return given
    del given["rope_parameters"]
    scaling = dict(rope)
    given["rope_theta"] = scaling.pop("rope_theta", given.get("rope_theta", 10_000.0))
    if scaling.get("rope_type", "default") != "default":
        given["rope_scaling"] = scaling
    return given


def attention_of(model_class: Any, config: Any) -> str:
    """Torch's attention where the model computes the same with it, else that of its own code.

    4.57 takes torch's for models whose scores are bounded, and does not bound them then.
    """
    bounded = getattr(config, "attn_logit_softcapping", None) is not None
    has_torchs = getattr(model_class, "_supports_sdpa", True)
    return "sdpa" if has_torchs and not bounded else "eager"


def tied_weights(model: Any) -> Mapping[str, str]:
    """The names of parameters that repeat another one, and its name."""
    if hasattr(model, "all_tied_weights_keys"):
        tied: Mapping[str, str] = model.all_tied_weights_keys
        return tied
    if not model.config.tie_word_embeddings or not model._tied_weights_keys:  # noqa: SLF001
        return {}
    first = model.get_input_embeddings()
    (name,) = (name for name, module in model.named_modules() if module is first)
    return dict.fromkeys(model._tied_weights_keys, f"{name}.weight")  # noqa: SLF001


def stored_otherwise(model: Any) -> str:
    """A tensor that transformers' files do not hold as this model does; "" if they hold all so.

    5 joins the experts of a layer, and renames layers of some architectures, when it loads them.
    """
    if _RELEASE < _CONVERTS_WEIGHTS:
        return ""
    from transformers import conversion_mapping, core_model_loading  # noqa: PLC0415 - not in 4.57

    found = conversion_mapping.get_model_conversion_mapping(model, add_legacy=False)
    # As transformers saves: prefixes are those of files that it has loaded.
    prefixes = getattr(core_model_loading, "PrefixChange", ())  # not in 5.3
    saved = [one.reverse_transform() for one in reversed(found) if not isinstance(one, prefixes)]
    converters = [one for one in saved if isinstance(one, core_model_loading.WeightConverter)]
    renamings = [one for one in saved if isinstance(one, core_model_loading.WeightRenaming)]
    names: list[str] = list(model.state_dict())
    for name in names:
        if any(one.rename_source_key(name)[1] is not None for one in converters):
            return name
        stored = name
        for one in renamings:
            stored, _ = one.rename_source_key(stored)
        if stored != name:
            return name
    return ""


def restore_buffers(model: Any) -> None:
    """Compute buffers that no file holds, such as the frequencies of rotary embeddings.

    ValueError for one that transformers computes in no way that is known here.
    """
    owners = dict(_with_own_buffers(model))
    for module in owners.values():
        for name in module._non_persistent_buffers_set:  # noqa: SLF001
            made = torch.empty_like(module.get_buffer(name), device="cpu")
            setattr(module, name, made.fill_(_unset(made)))
    with torch.no_grad():
        for _, module in sorted(owners.items()):
            _compute(model, module)
    for owner, module in owners.items():
        for name in module._non_persistent_buffers_set:  # noqa: SLF001
            buffer = module.get_buffer(name)
            if buffer.numel() and buffer.dtype is not torch.bool and _is_unset(buffer):
                raise ValueError(f"nothing computes its buffer {owner}.{name}")


def _unset(buffer: torch.Tensor) -> float:
    """A value that no computed buffer is full of; of a mask there is none."""
    if buffer.dtype is torch.bool:
        return False
    return math.nan if buffer.is_floating_point() else torch.iinfo(buffer.dtype).min


def _is_unset(buffer: torch.Tensor) -> bool:
    given = buffer.isnan() if buffer.is_floating_point() else buffer == _unset(buffer)
    return bool(given.all())


def _with_own_buffers(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    for name, module in model.named_modules():
        own = module._non_persistent_buffers_set  # noqa: SLF001
        if any(module._buffers.get(buffer) is not None for buffer in own):  # noqa: SLF001
            yield name, module


def _compute(model: Any, module: Any) -> None:
    if _RELEASE >= _COMPUTES_BUFFERS or not hasattr(module, "rope_init_fn"):
        model._init_weights(module)  # noqa: SLF001 - models override it
        return
    # transformers 4.57 computes them when the module is made, and on no other occasion.
    frequencies, module.attention_scaling = module.rope_init_fn(module.config, device="cpu")
    module.inv_freq = frequencies
    module.original_inv_freq = module.inv_freq
