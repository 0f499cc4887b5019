"""A second set of weights for a vLLM model, made beside the one that serves, and then copied there.

vLLM's own reload writes into the weights that serve, so that a failure in its midst leaves a model
of two versions (vLLM issue 57854). Here its layerwise reload runs on copies of the modules, which
share everything with the model but the weights; what was loaded is copied into what serves in one
go.
"""

from __future__ import annotations

import logging
from copy import copy
from dataclasses import dataclass
from types import MethodType
from typing import TYPE_CHECKING, Any

import torch
from vllm.model_executor.layers.attention import is_deferred_attention_layer
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.model_executor.layers.fused_moe.fused_moe_method_base import FusedMoEMethodBase
from vllm.model_executor.layers.quantization.base_config import QuantizeMethodBase
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
from vllm.model_executor.model_loader.reload import layerwise
from vllm.model_executor.model_loader.reload.meta import SKIP_TENSORS, to_meta_tensor

from rollcall_plugins.inference.vllm.in_server.loaded_sums import LoadedSums
from rollcall_plugins.inference.vllm.in_server.weight_copies import Pair, WeightCopies

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor, nn
    from vllm.config import ModelConfig

# At each update it warns of the modules that have no weights of their own; IncompleteWeightsError
# says what is missing.
layerwise.logger.setLevel(logging.ERROR)

_OWN = ("_parameters", "_buffers", "_non_persistent_buffers_set")


class IncompleteWeightsError(ValueError):
    """The weights leave parameters of the model as they were."""


class ShadowModel:
    """Weights for `model` that do not serve yet."""

    def __init__(self, model: nn.Module, model_config: ModelConfig) -> None:
        self._model_config = model_config
        self._copies: dict[int, nn.Module] = {}
        self._pairs: list[Pair] = []
        self._copied: WeightCopies | None = None
        self._sums = LoadedSums(model_config.dtype)
        self._shadow = self._copy(model)
        self.agrees = False
        """Whether the bits that were loaded have the sum of those that came; see LoadedSums."""

    @torch.no_grad()
    def load(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Load `weights`, named and shaped as in a checkpoint; process them as vLLM serves them.

        vLLM's loaders copy the tensors, and may keep some: their numbers must not change later.
        Raises what vLLM raises for an unknown name or another shape, IncompleteWeightsError, and
        LayoutChangedError.
        """
        try:
            self._load(weights)
            self._copied = WeightCopies(self._pairs, captured=not self._model_config.enforce_eager)
        except BaseException:
            self.free()
            raise
        self._let_go()

    def commit(self) -> None:
        """Let the model serve these weights, which were loaded. No request may run meanwhile.

        If it raises, what serves may be of two versions.
        """
        assert self._copied is not None  # noqa: S101 - `load` made it
        self._copied.apply()

    def free(self) -> None:
        """Give its weights back at once; it cannot be used any more. Harmless twice.

        Modules and what vLLM made of their weights lead to each other in circles, and the garbage
        collector of a server that only generates hardly ever runs.
        """
        for pair in self._pairs:
            layerwise.LAYERWISE_INFO.pop(pair.shadow, None)
            pair.shadow.__dict__.clear()
        self._copied = None
        self._pairs.clear()
        self._copies.clear()

    # --- inside --------------------------------------------------------------------------------

    def _load(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        shared = _shared_parameters(self._pairs)
        layerwise.initialize_layerwise_reload(self._shadow)
        served = self._forget_kernels()
        shadow: Any = self._shadow
        shadow.load_weights(self._sums.given(weights))
        loaded = self._keep_what_was_not_loaded(served)
        layerwise.finalize_layerwise_processing(self._shadow, self._model_config)
        self.agrees = self._sums.agree(loaded)
        self._share_buffers(served, loaded)
        self._tie(shared, loaded)

    def _let_go(self) -> None:
        """Leave nothing that leads to the shadows but this object.

        vLLM's table of modules would keep them for ever. A parameter leads to its module by its
        loader: those that serve would keep the shadow, and so the weights that served before, and
        these the ones before them.
        """
        for pair in self._pairs:
            layerwise.LAYERWISE_INFO.pop(pair.shadow, None)
            own = pair.shadow.__dict__
            for tensor in (*own["_parameters"].values(), *own["_buffers"].values()):
                for name, value in vars(tensor).items() if tensor is not None else ():
                    if isinstance(value, MethodType) and value.__self__ is pair.shadow:
                        setattr(tensor, name, MethodType(value.__func__, pair.serving))

    def _copy(self, module: nn.Module) -> nn.Module:
        """A module that shares all attributes with `module` and may get weights of its own."""
        known = self._copies.get(id(module))
        if known is not None:
            return known
        shadow: nn.Module = object.__new__(type(module))
        self._copies[id(module)] = shadow
        attributes = dict(module.__dict__)
        for name in _OWN:
            attributes[name] = type(attributes[name])(attributes[name])
        # vLLM's reload fills these in place, and leaves its loaders in them.
        attributes["_parameters"] |= {
            name: _copy_of(parameter)
            for name, parameter in module._parameters.items()  # noqa: SLF001
            if name in SKIP_TENSORS and parameter is not None
        }
        attributes["_modules"] = {
            name: None if child is None else self._copy(child)
            for name, child in module._modules.items()  # noqa: SLF001
        }
        method = attributes.get("quant_method")
        if isinstance(method, QuantizeMethodBase):  # what it sets up serves at once otherwise
            attributes["quant_method"] = self._sums.before(_forgetful(copy(method)))
        shadow.__dict__ = attributes
        _forgetful(shadow)
        info = layerwise.get_layerwise_info(module)
        own = layerwise.get_layerwise_info(shadow)
        # Its own: the reload leaves its loaders in these, which lead to the layer that it filled.
        parameters, buffers = info.restore_metadata
        own.restore_metadata = (_copies(parameters), _copies(buffers))
        own.restore_device = info.restore_device
        has_kernels = isinstance(module, QuantizeMethodBase)
        self._pairs.append(Pair(module, shadow, dict(attributes), has_kernels=has_kernels))
        return shadow

    def _forget_kernels(self) -> dict[nn.Module, Any]:
        """Let vLLM copy nothing into the tensors that serve; returns these by shadow."""
        served = {}
        for pair in self._pairs:
            info = layerwise.get_layerwise_info(pair.shadow)
            served[pair.shadow] = (info.kernel_tensors, set(info.kernel_non_persistent_buffers))
            info.kernel_tensors = None
        return served

    def _keep_what_was_not_loaded(self, served: dict[nn.Module, Any]) -> set[nn.Module]:
        """Give shadows that nothing was loaded into what serves. Returns the others.

        IncompleteWeightsError for a module of which only a part was loaded.
        """
        loaded, partial = set(), []
        for pair in self._pairs:
            info = layerwise.get_layerwise_info(pair.shadow)
            if not info.can_load():  # processed already
                loaded.add(pair.shadow)
                continue
            if info.load_numel > 0:
                loaded.add(pair.shadow)
                # The rows that pad a vocabulary are in no checkpoint.
                if not isinstance(pair.shadow, (VocabParallelEmbedding, AttentionLayerBase)):
                    partial.append(type(pair.shadow).__name__)
            if info.load_numel <= 0 or is_deferred_attention_layer(pair.shadow):
                info.kernel_tensors, info.kernel_non_persistent_buffers = served[pair.shadow]
        if partial:
            raise IncompleteWeightsError(f"only a part was loaded of {', '.join(sorted(partial))}")
        return loaded

    def _share_buffers(self, served: dict[nn.Module, Any], loaded: set[nn.Module]) -> None:
        """Buffers that no checkpoint holds stay those that serve."""
        for shadow in loaded:
            kernels, non_persistent = served[shadow]
            if kernels is None:
                continue
            for name, buffer in kernels[1].items():
                if name in non_persistent and name in shadow._buffers:  # noqa: SLF001
                    shadow._buffers[name] = buffer  # noqa: SLF001

    def _tie(self, shared: dict[nn.Module, list[_Tie]], loaded: set[nn.Module]) -> None:
        """Tie again what the model ties, and process it: vLLM's reload on CPUs forgets that.

        IncompleteWeightsError for parameters that are neither loaded nor tied to one that is.
        """
        missing = []
        for pair in self._pairs:
            shadow = pair.shadow
            if shadow in loaded or not _has_weights(shadow):
                continue
            ties = [tie for tie in shared.get(shadow, []) if tie.other in loaded]
            if not ties:
                missing.append(type(shadow).__name__)
            for tie in ties:
                shadow._parameters[tie.name] = tie.other._parameters[tie.other_name]  # noqa: SLF001
            method = getattr(shadow, "quant_method", None)
            if ties and method is not None:
                method.process_weights_after_loading(shadow)
        if missing:
            raise IncompleteWeightsError(f"nothing was loaded into {', '.join(sorted(missing))}")


@dataclass(frozen=True, slots=True)
class _Tie:
    """A parameter that is also `other_name` of `other`."""

    name: str
    other: nn.Module
    other_name: str


def _shared_parameters(pairs: list[Pair]) -> dict[nn.Module, list[_Tie]]:
    """The ties of each shadow's parameters, from the identity of those that serve."""
    places: dict[int, list[tuple[nn.Module, str]]] = {}
    for pair in pairs:
        for name, parameter in pair.serving._parameters.items():  # noqa: SLF001
            if parameter is not None:
                places.setdefault(id(parameter), []).append((pair.shadow, name))
    ties: dict[nn.Module, list[_Tie]] = {}
    for found in places.values():
        for shadow, name in found:
            others = [_Tie(name, other, at) for other, at in found if other is not shadow]
            ties.setdefault(shadow, []).extend(others)
    return ties


def _has_weights(module: nn.Module) -> bool:
    parameters = module._parameters.values()  # noqa: SLF001
    return any(parameter is not None and parameter.numel() for parameter in parameters)


def _forgetful(method: Any) -> Any:
    """`method`, which sets up its kernel again, and lays out weights as that wants them."""
    if isinstance(method, FusedMoEMethodBase):
        method.moe_kernel = None
    return method


def _copy_of(parameter: Tensor) -> Tensor:
    """A parameter of the same class, attributes and numbers."""
    made = parameter.data.clone()
    made.__class__ = parameter.__class__
    made.__dict__ = dict(parameter.__dict__)
    return made


def _copies(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: to_meta_tensor(tensor) for name, tensor in tensors.items()}
