"""Models in the format of Hugging Face: `config.json`, safetensors files, a tokenizer.

transformers builds them; code that a directory brings along is never run.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)
from transformers import __version__ as transformers_version
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from rollcall_runtime.models.config_values import (
    MOST_POSITIONS,
    check_values,
    shown,
    shown_error,
    size_of,
)
from rollcall_runtime.models.json_file import read_json_object
from rollcall_runtime.models.model_source import FIELD, Head, ModelSource
from rollcall_runtime.models.source_weights import new_output_layer, of_files
from rollcall_runtime.models.transformers_api import (
    CANNOT_BUILD,
    STORED,
    attention_of,
    config_values,
    restore_buffers,
    stored_otherwise,
    tied_weights,
)
from rollcall_runtime.models.weight_files import open_weight_files
from rollcall_runtime.worker.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import nn

    from rollcall_runtime.models.weight_files import WeightFiles
    from rollcall_runtime.models.weight_loading import WeightReader

log = logging.getLogger(__name__)

CODE = "auto_map"
"""What names code in the directory, which is never run and does not go along with an export."""

TESTED = ("llama", "qwen2", "qwen3")

# By transformers' names: a value is what it calls the class of a token.
_AUTO_CLASSES: Mapping[Head, Any] = {
    "language-model": AutoModelForCausalLM,
    "value": AutoModelForTokenClassification,
    "sequence-classification": AutoModelForSequenceClassification,
}


MOST_BUFFER_BYTES = 4 << 30
"""Of what a model computes when it is built, such as a mask for each two of its positions."""
_ONE_LABEL = {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}


@dataclass(frozen=True, slots=True, kw_only=True)
class HuggingFaceSource(ModelSource):
    """A directory; `values` is its config.json."""

    values: Mapping[str, Any]
    files: WeightFiles

    def build_empty(
        self, *, head: Head = "language-model", dtype: torch.dtype = torch.float32
    ) -> nn.Module:
        config, file = self._config(head), f"{self.directory}/config.json"
        try:
            model = _built(_AUTO_CLASSES[head], config, dtype)
        except CANNOT_BUILD as error:
            problem = f"transformers cannot build this {self.architecture}: {shown_error(error)}"
            raise SpecError(FIELD, f"{file}: {problem}") from error
        if model is None:
            problem = f"transformers has no {self.architecture} with the head {head}"
            raise SpecError(FIELD, f"{file}: {problem}; name a model of another architecture")
        return model

    def weights(self, *, head: Head = "language-model", seed: int = 0) -> WeightReader:
        model = cast("Any", self.build_empty(head=head))
        other = stored_otherwise(model)
        if other and other not in self.files.tensors:
            raise SpecError(FIELD, f"{self.directory}: {self.architecture} {STORED.format(other)}")
        tied = tied_weights(model)
        shapes = {n: tuple(t.shape) for n, t in model.state_dict().items() if n not in tied}
        return of_files(
            self.files,
            shapes,
            made=new_output_layer(shapes, head=head, seed=seed),
            tied={first: repeated for repeated, first in tied.items()},
            ignored=model._keys_to_ignore_on_load_unexpected or (),  # noqa: SLF001 - no other way
        )

    def config_json(self, *, head: Head, dtype: torch.dtype) -> dict[str, Any]:
        """What config.json says of the same model with weights of `dtype` and this head."""
        # Former versions of transformers know torch_dtype alone: the file keeps its own word.
        name = "torch_dtype" if "torch_dtype" in self.values else "dtype"
        values = {n: value for n, value in self.values.items() if n != CODE}
        values[name] = str(dtype).removeprefix("torch.")
        values["architectures"] = [type(self.build_empty(head=head)).__name__]
        if head != "language-model":
            values |= _ONE_LABEL
        return values

    def _config(self, head: Head) -> Any:
        """The configuration of transformers; SpecError if a value in it cannot be."""
        values = config_values({n: value for n, value in self.values.items() if n != CODE})
        try:
            return AutoConfig.for_model(**values | ({} if head == "language-model" else _ONE_LABEL))
        except (*CANNOT_BUILD, StrictDataclassError) as error:
            problem = shown_error(error)
            raise SpecError(FIELD, f"{self.directory}/config.json: {problem}") from error


def _built(chosen: Any, config: Any, dtype: torch.dtype) -> nn.Module | None:
    """As `build_empty`; None if there is no such class of models."""
    # Imports the architecture's module. Below, torch 2.6 would import its compiler on the meta
    # device, where that fails.
    kind = chosen._model_mapping.get(type(config), None)  # noqa: SLF001 - no other way
    if kind is None:
        return None
    attention = attention_of(kind, config)
    with torch.device("meta"):
        model = chosen.from_config(
            config, dtype=dtype, attn_implementation=attention, trust_remote_code=False
        )
    computed = sum(buffer.numel() * buffer.itemsize for buffer in model.buffers())
    if computed > MOST_BUFFER_BYTES:
        raise ValueError(f"it would compute {computed} bytes of buffers; correct its positions")
    restore_buffers(model)
    return cast("nn.Module", model.eval())


def hugging_face_directory(
    path: str, directory: Path, values: Mapping[str, Any]
) -> HuggingFaceSource:
    """The model of a directory whose config.json holds `values`; SpecError as `open_model`."""
    file = directory / "config.json"
    architecture = values["model_type"]
    _check_architecture(architecture, values, file=file)
    check_values(values, architecture, file=file)
    vocabulary: int | None = values.get("vocab_size")
    if vocabulary is None:
        raise SpecError(FIELD, f"{file} has no vocab_size, so it is no language model's")
    return HuggingFaceSource(
        path=path,
        architecture=architecture,
        vocabulary=vocabulary,
        positions=_positions(values, file=file),
        named_eos=_end_tokens(directory, values),
        directory=directory,
        values=values,
        files=open_weight_files(directory),
    )


def _positions(values: Mapping[str, Any], *, file: Path) -> int | None:
    """How many tokens of a sequence the model computes in one way, None if there is no bound.

    LongRoPE turns the tokens of a longer call by other angles, all of them: a short row beside a
    long one, and what rollouts keep of a row's beginning, would not be what its own call gives.
    vLLM's default is this bound, too (`_get_and_verify_max_len` in vllm/config/model.py).
    """
    whole: int | None = values.get("max_position_embeddings")
    rope = values.get("rope_parameters") or values.get("rope_scaling") or {}
    if not isinstance(rope, dict) or "short_factor" not in rope:
        return whole
    name = "original_max_position_embeddings"
    given = values if values.get(name) is not None else rope
    first = size_of(given, name, MOST_POSITIONS, file=file)
    if first is None or whole is None or first >= whole:
        return whole
    log.warning("%s: of its %d positions the first %d are used (LongRoPE)", file, whole, first)
    return first


def _check_architecture(architecture: object, values: Mapping[str, Any], *, file: Path) -> None:
    if not isinstance(architecture, str) or architecture not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        raise SpecError(
            FIELD,
            f"{file}: model_type is {shown(architecture)}, of which transformers "
            f"{transformers_version} knows no language model; tested are {', '.join(TESTED)}",
        )
    if how := values.get("quantization_config"):
        method = shown(how.get("quant_method", how)) if isinstance(how, dict) else shown(how)
        problem = "the weights are quantized and cannot be trained; name an unquantized copy"
        raise SpecError(FIELD, f"{file} has a quantization_config ({method}): {problem}")
    if architecture not in TESTED:
        tested = ", ".join(TESTED)
        log.warning("%s: %s is none of the tested architectures (%s)", file, architecture, tested)


def _end_tokens(directory: Path, values: Mapping[str, Any]) -> frozenset[int]:
    """Generation settings go before the model's, and these before the architecture's own token.

    As in transformers, and so in vLLM, which adds the tokenizer's own.
    """
    file = directory / "generation_config.json"
    found = read_json_object(file).get("eos_token_id") if file.is_file() else None
    if found is None:
        file, found = directory / "config.json", values.get("eos_token_id")
        if "eos_token_id" not in values:
            found = getattr(AutoConfig.for_model(values["model_type"]), "eos_token_id", None)
    tokens = found if isinstance(found, list) else [found] if found is not None else []
    if not all(type(token) is int and token >= 0 for token in tokens):
        raise SpecError(
            FIELD, f"{file}: eos_token_id is {shown(found)}, not a token or a list of them"
        )
    return frozenset(tokens)
