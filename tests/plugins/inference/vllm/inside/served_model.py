"""A model that vLLM serves in this process, updated through the worker's own calls."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from vllm import LLM, SamplingParams
from vllm.lora.request import LoRARequest

from rollcall_plugins.inference.vllm.in_server import BACKEND, staged_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from torch import Tensor, nn
    from transformers import PreTrainedModel

PROMPTS = ((5, 9, 11, 40, 7, 33), (1, 2, 3))
TOKENS = 24

_Answer = TypeVar("_Answer")

Output = list[tuple[list[int], list[float]]]  # of each prompt: tokens and their log-probabilities


class ServedModel:
    """`first` is what vLLM starts with, `second` other weights of the same model."""

    def __init__(
        self, folder: Path, *, first: PreTrainedModel, second: PreTrainedModel, **more: Any
    ) -> None:
        self.first, self.second = first, second
        arguments: dict[str, Any] = {
            "skip_tokenizer_init": True,
            "dtype": "float32",
            "enforce_eager": True,
            "max_model_len": 256,
            "enable_prefix_caching": True,
            "weight_transfer_config": {"backend": BACKEND},
        }
        self._llm = LLM(str(folder), **(arguments | more))
        self._updating = False

    def ask(self, function: Callable[[nn.Module], _Answer]) -> list[_Answer]:
        """What `function` says of each rank's model, in its process."""
        return list(self._llm.apply_model(function))

    def greedy(self) -> Output:
        """What vLLM generates with the weights that it serves now."""
        self._llm.reset_prefix_cache()
        parameters = SamplingParams(
            temperature=0, max_tokens=TOKENS, logprobs=0, detokenize=False, ignore_eos=True
        )
        prompts: Any = [{"prompt_token_ids": list(prompt)} for prompt in PROMPTS]
        outputs = [o.outputs[0] for o in self._llm.generate(prompts, parameters, use_tqdm=False)]
        return [
            (list(o.token_ids), [next(iter(at.values())).logprob for at in o.logprobs])
            for o in outputs
        ]

    def stage(self, weights: Iterable[tuple[str, Tensor]], *, version: int) -> None:
        """Stage `weights` and prepare them; raises what the worker raises."""
        staged = os.memfd_create("staged")
        try:
            staged_file.write(staged, weights, version=version)
            self.begin()
            self.act(action="prepare", path=f"/proc/{os.getpid()}/fd/{staged}")
            self.act(action="wait", seconds=60)
        finally:
            os.close(staged)

    def update(self, model: PreTrainedModel, *, version: int) -> None:
        """Serve the weights of `model`."""
        self.stage(model.named_parameters(), version=version)
        self.finish()

    def begin(self) -> None:
        if not self._updating:
            self._llm.collective_rpc("start_weight_update")
        self._updating = True

    def act(self, **update_info: object) -> None:
        try:
            self._llm.collective_rpc("update_weights", args=(update_info,))
        except BaseException:
            self._updating = False
            raise

    def finish(self) -> None:
        self._llm.collective_rpc("finish_weight_update")
        self._updating = False

    def adapt(self, folder: Path, *, number: int) -> None:
        """Load the adapter in `folder` beside those that are there."""
        self._llm.llm_engine.add_lora(LoRARequest(f"adapter-{number}", number, str(folder)))

    def sleep_and_wake(self) -> None:
        self._llm.sleep(level=1)
        self._llm.wake_up()

    def close(self) -> None:
        self._llm.llm_engine.engine_core.shutdown()


@torch.no_grad()
def reference(model: PreTrainedModel) -> Output:
    """What `model` itself generates, with transformers."""
    outputs = []
    for prompt in PROMPTS:
        tokens, logprobs = list(prompt), []
        for _ in range(TOKENS):
            last = model(torch.tensor([tokens])).logits[0, -1].log_softmax(-1)
            tokens.append(int(last.argmax()))
            logprobs.append(float(last.max()))
        outputs.append((tokens[len(prompt) :], logprobs))
    return outputs
