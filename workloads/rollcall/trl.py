"""TRL's trainers on rollouts that come and go: `attach(trainer)` after the trainer is made.

For GRPOTrainer and each trainer that generates through TRL's `VLLMGeneration` and keeps it in
`vllm_generation`. TRL's own code walks the model (FSDP, DeepSpeed, PEFT) and gathers the prompts of
all ranks; here is what stands in the place of its client of one vLLM server.
https://github.com/huggingface/trl, trl/generation/vllm_generation.py and vllm_client.py of 1.16
"""

from __future__ import annotations

import inspect
import sys
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, cast

from rollcall.asked_responses import refuse_unless_neutral
from rollcall.errors import RollcallError
from rollcall.known_versions import is_known, shown
from rollcall.trainer import Trainer, finite

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import torch

FIRST_VERSION, END_VERSION = (1, 16), (1, 17)
"""The versions of TRL whose trainers can be attached to: from the first, below the end."""

_SET = ("use_vllm", "vllm_generation")
_STEPS = ("_last_loaded_step", "_last_vllm_sync_step")
"""What `attach` sets of a trainer. It has one of the latter: the step whose weights it has sent."""

_SAMPLING: Mapping[str, Any] = {
    "repetition_penalty": 1.0,
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": None,
    "max_completion_length": None,
}
"""What a trainer, or its configuration, may say of sampling, and what is so where neither does."""
_FIGURES = {
    "loss": "actor/pg_loss",
    "grad_norm": "actor/grad_norm",
    "learning_rate": "actor/lr",
    "entropy": "actor/entropy",
    "completions/mean_length": "response_length/mean",
    "completions/clipped_ratio": "response_length/clip_ratio",
    "step_time": "timing_s/step",
}
"""What TRL logs, and the names that Rollcall's reports have for it."""
_READ = ("model", "accelerator", "processing_class", "state", "args", "add_callback")


def attach(trainer: Any) -> Trainer | None:
    """Have `trainer`, which has not trained yet, sample from the job's rollouts.

    Each time that it generates after a step, its weights are published first. With several ranks
    all of them call this; the first of each pod gets a `Trainer`, the others None. The job's status
    follows the trainer's step and reward. When the program ends after training has, without an
    error, the job has succeeded.

    RollcallError names the attribute or setting that does not fit.
    """
    _check(trainer)
    accelerator = trainer.accelerator
    # In each pod, whose probes it answers; the main process alone publishes.
    own = Trainer() if accelerator.is_local_main_process else None
    client = _Client(own, trainer) if own is not None and accelerator.is_main_process else None
    trainer.vllm_generation = _generation(trainer, client)
    trainer.use_vllm, trainer.vllm_mode = True, "server"
    for name in _STEPS:
        setattr(trainer, name, -1)  # of no step: publish before the first
    if not hasattr(trainer, "vllm_sync_frequency"):
        trainer.vllm_sync_frequency = getattr(trainer.args, "vllm_sync_frequency", 1)
    if own is not None and client is not None:
        trainer.add_callback(_progress(own))
    return own


class WeightTransfer:
    """For `weight_transfer=` of TRL's AsyncGRPOTrainer, on its main process: publishes weights.

    The job needs a front (`spec.front` with `withoutApiKeys`), whose address is the trainer's
    `vllm_server_base_url`: its workers sample there. When the program ends after training has,
    without an error, the job has succeeded.
    """

    def __init__(self) -> None:
        """Start the coordinator, as `Trainer` does."""
        self.trainer = Trainer()
        self._sent = 0

    def init_weight_transfer(self) -> None:
        """Rollouts join by themselves."""

    def pause(self) -> None:
        """Rollouts pause by themselves, while they apply what has arrived."""

    def send_weights(self, iterator: Iterator[tuple[str, torch.Tensor]]) -> None:
        """Publish; the step is the number of versions before."""
        _publish(self.trainer, iterator, self._sent)
        self._sent += 1

    def resume(self) -> None:
        """Rollouts have gone on."""

    def destroy(self) -> None:
        """Training has ended; what follows in the program is part of the job."""
        self.trainer.finish_at_exit(max(0, self._sent - 1))


def _publish(own: Trainer, params: Iterator[tuple[str, torch.Tensor]], step: int) -> None:
    try:
        own.publish(params, step)
    finally:
        for _ in params:
            pass  # gathering is collective, and at the end TRL takes adapters out again


class _Client:
    """In the place of TRL's VLLMClient, with the methods that VLLMGeneration calls of it."""

    def __init__(self, own: Trainer, trainer: Any) -> None:
        self._own, self._trainer = own, trainer

    def update_named_params(
        self, metadata: object, params: Iterator[tuple[str, torch.Tensor]]
    ) -> None:
        """Publish. `metadata` (names, dtypes, shapes) are in the tensors as well."""
        del metadata
        _publish(self._own, params, self._trainer.state.global_step)

    def reset_prefix_cache(self) -> None:
        """Rollouts forget what they computed with former weights by themselves."""

    def image_features(self, images: object) -> None:
        """RollcallError: the rollouts take tokens alone."""
        raise RollcallError(
            f"generate: the prompts have images ({type(images).__name__}), and rollouts take text; "
            "train on text alone"
        )

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        features: object = None,
        *,
        n: int,
        max_tokens: int,
        temperature: float,
        top_p: float,
        top_k: int,
        min_p: float | None,
        repetition_penalty: float,
        logprobs: int | None,
        structured_outputs_regex: str | None,
        generation_kwargs: Mapping[str, Any],
    ) -> dict[str, Any]:
        """`n` responses to each prompt, with the log-probability of each token."""
        neutral = {
            "min_p": (min_p or 0.0, 0.0),
            "repetition_penalty": (repetition_penalty, 1.0),
            "vllm_structured_outputs_regex": (structured_outputs_regex, None),
            "logprobs": (logprobs or 0, 0),
            "images": (features, None),
        }
        refuse_unless_neutral(neutral)
        asked = {
            "max_tokens": max_tokens,
            "temperature": temperature,
            "top_p": top_p,
            "top_k": max(top_k, 0),
            **_known(generation_kwargs),
        }
        groups = self._own.generate(prompts, n, **asked)
        samples = [sample for group in groups for sample in group.samples]
        return {
            "prompt_ids": [list(group.prompt) for group in groups],
            "completion_ids": [list(sample.tokens) for sample in samples],
            "logprobs": [[[logprob] for logprob in sample.logprobs] for sample in samples],
            "logprob_token_ids": [[[token] for token in sample.tokens] for sample in samples],
        }


def _known(generation_kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
    """RollcallError names what rollouts do not have."""
    known = {"max_tokens", "temperature", "top_p", "top_k", "stop", "stop_token_ids", "seed"}
    for name in generation_kwargs:
        if name not in known:
            raise RollcallError(
                f"generate: generation_kwargs has {name!r}, which rollouts do not have; known are "
                f"{', '.join(sorted(known))}"
            )
    return generation_kwargs


def _generation(trainer: Any, client: _Client | None) -> Any:
    """TRL's own VLLMGeneration with `client`, which is None on ranks other than the main one."""
    from trl.generation.vllm_generation import VLLMGeneration  # noqa: PLC0415 - imports torch

    class RollcallGeneration(VLLMGeneration):
        """Starts no vLLM, and connects to none."""

        def _init_vllm(self) -> None:
            self.vllm_client = cast("Any", client)

    for name in ("_init_vllm", "sync_weights", "generate", "_iter_named_params"):
        if not hasattr(VLLMGeneration, name):
            raise _changed(f"trl.generation.vllm_generation.VLLMGeneration.{name}")
    settings = {
        "model": trainer.model,
        "accelerator": trainer.accelerator,
        "processing_class": trainer.processing_class,
        "mode": "server",
        "structured_outputs_regex": getattr(trainer.args, "vllm_structured_outputs_regex", None),
        "logprobs": 0,
        "generation_kwargs": getattr(trainer.args, "generation_kwargs", None),
        **{name: _sampling(trainer, name) for name in _SAMPLING},
    }
    taken = inspect.signature(VLLMGeneration.__init__).parameters
    for name in settings:
        if name not in taken:
            raise _changed(f"trl.generation.vllm_generation.VLLMGeneration({name}=...)")
    return RollcallGeneration(**settings)


def _check(trainer: Any) -> None:
    found = version("trl")
    if not is_known(found, FIRST_VERSION, END_VERSION):
        raise RollcallError(
            f"attach: trl {found} is installed; the trainers of "
            f"{shown(FIRST_VERSION, END_VERSION)} are known: install one of these"
        )
    if getattr(trainer, "use_vllm", False):
        raise RollcallError(
            "attach: the trainer has use_vllm=True, and so a vLLM of its own; leave it out"
        )
    source, kind = _source_of(type(trainer)), type(trainer).__name__
    for names in (*([name] for name in _SET), _STEPS):
        if not any(f"self.{name} " in source for name in names):
            raise _changed(f"{kind}.{' or '.join(names)}")
    for name in _READ:
        if not hasattr(trainer, name):
            raise _changed(f"{kind}.{name}")
    _check_loss(trainer.args)


def _check_loss(settings: Any) -> None:
    """As TRL's GRPOTrainer, which looks while use_vllm is still False."""
    mode = getattr(settings, "vllm_importance_sampling_mode", None)
    corrects = getattr(settings, "vllm_importance_sampling_correction", False)
    fits = mode in {"token_truncate", "token_mask"}
    if getattr(settings, "loss_type", None) == "vespo" and corrects and not fits:
        raise RollcallError(
            f"attach: loss_type='vespo' does not go with vllm_importance_sampling_mode={mode!r}; "
            "write 'token_truncate' or 'token_mask'"
        )


def _source_of(kind: type) -> str:
    """Of TRL's modules that the trainer's class comes from; it may be derived in a script."""
    modules = dict.fromkeys(base.__module__ for base in kind.__mro__)
    ours = [sys.modules[name] for name in modules if name.partition(".")[0] == "trl"]
    return "".join(map(inspect.getsource, ours))


def _sampling(trainer: Any, name: str) -> Any:
    for place in (trainer, trainer.args):
        if hasattr(place, name):
            return getattr(place, name)
    return _SAMPLING[name]


def _changed(what: str) -> RollcallError:
    return RollcallError(
        f"attach: trl {version('trl')} has no {what}; it is no trainer that generates by vLLM, or "
        "another version of TRL is needed"
    )


def _progress(own: Trainer) -> Any:
    """A callback that reports steps and rewards, and, at the end of the program, the end."""
    from transformers import TrainerCallback  # noqa: PLC0415 - imports much

    class RollcallProgress(TrainerCallback):
        """Writes what TRL logs into the job's status."""

        def on_log(
            self, args: object, state: Any, control: object, logs: Any = None, **_: object
        ) -> None:
            """TRL logs the mean reward of the samples of the steps since the last log."""
            del args, control
            numbers = {name: finite(value) for name, value in (logs or {}).items()}
            figures = {
                ours: number
                for theirs, ours in _FIGURES.items()
                if (number := numbers.get(theirs)) is not None
            }
            own.report(state.global_step, reward=numbers.get("reward"), figures=figures)

        def on_train_end(self, args: object, state: Any, control: object, **_: object) -> None:
            """What follows in the program, such as saving the model, is part of the job."""
            del args, control
            own.finish_at_exit(state.global_step)

    return RollcallProgress()
