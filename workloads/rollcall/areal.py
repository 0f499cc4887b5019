"""AReaL's PPOTrainer on rollouts that come and go: `from rollcall.areal import PPOTrainer`.

AReaL's own trainer, training workers, workflows and workflow executor, which runs in the trainer's
process. Here is what stands in the place of its rollout controller and inference servers.
https://github.com/inclusionAI/AReaL, areal/trainer/rl_trainer.py and
areal/infra/remote_inf_engine.py of 1.0.4
"""

from __future__ import annotations

import asyncio
import shutil
import time
from copy import deepcopy
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from areal.api import ModelResponse, SaveLoadMeta
from areal.api.cli_args import SchedulingStrategyType
from areal.infra.remote_inf_engine import RemoteInfEngine
from areal.infra.workflow_executor import WorkflowExecutor
from areal.trainer import rl_trainer
from areal.utils import logging, perf_tracer, stats_tracker
from areal.utils.environ import is_single_controller
from safetensors import safe_open

from rollcall.asked_responses import refuse_unless_neutral
from rollcall.errors import RollcallError
from rollcall.known_versions import is_known, shown
from rollcall.trainer import Trainer, finite

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch
    from areal.api import ModelRequest, WeightUpdateMeta
    from areal.api.cli_args import InferenceEngineConfig, PerfTracerConfig, PPOConfig

FIRST_VERSION, END_VERSION = (1, 0, 4), (1, 1)
"""The versions of AReaL that are known: from the first, below the end."""

REWARD = "rollout/reward"  # AReaL's name of the mean reward of the samples since its last step
PAUSE_SECONDS = 0.1  # between two looks whether AReaL goes on
VERSION_SECONDS = 300.0  # for an update to end whose weights rollouts serve already
ANY_TOP_K = 10**6  # from here on top_k is no bound; AReaL has 10**8 for that
NO_BOUND = 10**12  # AReaL's own for the staleness of samples of an evaluation
_TOGETHER = SchedulingStrategyType.colocation
_NEUTRAL = {
    "n_samples": 1,
    "min_new_tokens": 0,
    "ignore_eos": False,
    "frequency_penalty": 0.0,
    "use_beam_search": False,
}
"""Settings of a request that rollouts do not have, and their values where they do nothing."""


class PPOTrainer(rl_trainer.PPOTrainer):  # type: ignore[misc]
    """AReaL's trainer, for a job with `trainer.kind: External`.

    Weights are saved below `cluster.fileroot` on their way, which rank 0 of the actor and this
    process share, and are removed there when rollouts have them. `actor.weight_update_mode` and
    `rollout.backend` say nothing here. When the program ends after `train` has, without an error,
    the job has succeeded.

    RollcallError names the setting that does not fit.
    """

    def __init__(self, config: PPOConfig, *args: Any, **kwargs: Any) -> None:
        """As AReaL's. Rollouts serve the actor's weights when it returns."""
        _check(config)
        config.actor.weight_update_mode = "disk"  # the others begin with AReaL's rollouts
        self._weights = _Publications(Trainer())
        super().__init__(config, *args, **kwargs)
        if self.recover_info is None:  # else they were published when they were loaded
            self.actor.update_weights(self.weight_update_meta.with_version(0))

    def train(self, *args: Any, **kwargs: Any) -> None:
        """As AReaL's."""
        super().train(*args, **kwargs)
        self._weights.own.finish_at_exit(self._weights.step)

    def _create_train_engine(self, *args: Any, **kwargs: Any) -> Any:
        engine = super()._create_train_engine(*args, **kwargs)
        engine.update_weights = lambda meta: self._weights.publish(engine, meta)
        return engine

    def _init_rollout(
        self,
        rollout_config: InferenceEngineConfig,
        is_eval: bool = False,
        lora_path: str | None = None,
    ) -> _Engine:
        del lora_path  # none: `_check`
        config = deepcopy(rollout_config)
        if is_eval:
            config.max_head_offpolicyness = NO_BOUND
        engine = _Engine(config, self._weights)
        engine.initialize()
        return engine

    def _ensure_proxy_started(self) -> None:
        raise RollcallError(
            "train: the workflow wants AReaL's proxy, which there is not; pass a RolloutWorkflow"
        )

    def _export_and_commit_stats(self, epoch: int, epoch_step: int, global_step: int) -> None:
        """As AReaL's, and into the job's status."""
        stats = self.actor.export_stats()
        for engine in filter(None, [self.rollout, self.eval_rollout]):
            stats.update(engine.export_stats())
        self.stats_logger.commit(epoch, epoch_step, global_step, stats)
        self._weights.own.report(global_step + 1, reward=finite(stats.get(REWARD)))


class _Publications:
    """Brings weights to the rollouts; knows AReaL's number of each version."""

    def __init__(self, own: Trainer) -> None:
        self.own, self.step = own, 0
        self._numbers: dict[int, int] = {}

    def publish(self, engine: Any, meta: WeightUpdateMeta) -> None:
        """What `engine` has is AReaL's version `meta.version`."""
        folder = Path(str(meta.path))
        try:
            engine.save(SaveLoadMeta(str(folder), "hf", with_optim=False))
            outcome = self.own.publish(_saved(folder), meta.version)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        self._numbers[outcome.version] = self.step = int(meta.version or 0)

    async def numbers(self, versions: tuple[int, ...]) -> list[int]:
        """AReaL's numbers of these. Rollouts may serve a version before `publish` returns.

        RollcallError for a version that is of no publication here.
        """
        try:
            async with asyncio.timeout(VERSION_SECONDS):
                # `publish` is called in another thread.
                while unknown := {*versions} - self._numbers.keys():  # noqa: ASYNC110
                    await asyncio.sleep(PAUSE_SECONDS)
        except TimeoutError:
            raise RollcallError(
                f"generate: tokens are of version {max(unknown)}, which was published "
                f"{VERSION_SECONDS:g} s ago or never; see where the update of weights waits"
            ) from None
        return [self._numbers[found] for found in versions]


def _saved(folder: Path) -> Iterator[tuple[str, torch.Tensor]]:
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118 - it is no dictionary
                yield name, file.get_tensor(name)


class _Engine(RemoteInfEngine):  # type: ignore[misc]
    """AReaL's client of inference servers, whose responses are those of the job's rollouts."""

    callback_addr = ""  # for workers that update weights by the controller; these do not

    def __init__(self, config: InferenceEngineConfig, weights: _Publications) -> None:
        super().__init__(config, backend=None)  # what speaks with a server
        self._weights = weights

    def initialize(self) -> None:
        """Wait for no server."""
        self.engine_id = "rollcall"
        self.logger = logging.getLogger("rollcall")
        executor = WorkflowExecutor(config=self.config, inference_engine=self)
        executor.initialize(logger=self.logger)
        self.workflow_executor = executor
        self._initialized = True

    async def agenerate(self, req: ModelRequest) -> ModelResponse:
        """One response. An error ends training: AReaL would ask for another sample for ever."""
        while self.workflow_executor.is_paused():  # noqa: ASYNC110 - AReaL has no event for it
            await asyncio.sleep(PAUSE_SECONDS)
        try:
            return await self._generate(req)
        except Exception as error:
            self.workflow_executor.dispatcher._set_thread_exception(error)  # noqa: SLF001
            raise

    async def _generate(self, req: ModelRequest) -> ModelResponse:
        began = time.monotonic()
        wanted = req.gconfig
        _check_request(req)
        most = min(wanted.max_tokens - len(req.input_ids), wanted.max_new_tokens)
        (group,) = await self._weights.own.generate_async(
            [req.input_ids],
            max_tokens=most,
            temperature=0.0 if wanted.greedy else wanted.temperature,
            top_p=wanted.top_p,
            top_k=wanted.top_k if wanted.top_k < ANY_TOP_K else 0,
            stop=wanted.stop or (),
            stop_token_ids=wanted.stop_token_ids,
        )
        (sample,) = group.samples
        seconds = time.monotonic() - began
        return ModelResponse(
            input_tokens=list(group.prompt),
            output_tokens=list(sample.tokens),
            output_logprobs=list(sample.logprobs),
            output_versions=await self._weights.numbers(sample.versions),
            stop_reason=_stop_reason(sample.tokens, most, req),
            tokenizer=req.tokenizer,
            latency=seconds,
            ttft=seconds,
        )

    @property
    def staleness_manager(self) -> Any:
        """What bounds the samples under way."""
        return self.workflow_executor.staleness_manager

    def export_stats(self) -> Any:
        """Of this process, since they were exported last."""
        return stats_tracker.export_all(reduce_group=None)

    def config_perf_tracer(self, config: PerfTracerConfig, role: str) -> None:
        """Nothing: the trainer's process has one."""

    def save_perf_tracer(self, step: int | None = None, force: bool = False) -> None:
        """As AReaL's engines do."""
        perf_tracer.save(step=step, force=force)


def _stop_reason(tokens: tuple[int, ...], most: int, req: ModelRequest) -> str:
    ends = {*req.gconfig.stop_token_ids}
    if req.tokenizer is not None:
        ends |= {req.tokenizer.eos_token_id, req.tokenizer.pad_token_id}
    stopped = tokens[-1] in ends or (req.gconfig.stop and len(tokens) < most)
    return "stop" if stopped else "length"


def _check(config: PPOConfig) -> None:
    found = version("areal")
    if not is_known(found, FIRST_VERSION, END_VERSION):
        raise RollcallError(
            f"PPOTrainer: areal {found} is installed; "
            f"{shown(FIRST_VERSION, END_VERSION)} are known: install one of these"
        )
    if not is_single_controller():
        raise RollcallError(
            "PPOTrainer: AREAL_SPMD_MODE is set, by AReaL's launcher; run the script by itself, "
            "with scheduler.type=local"
        )
    versions = (config.actor._version, config.rollout._version)  # noqa: SLF001 - users set it
    placed = (config.actor.scheduling_strategy, config.rollout.scheduling_strategy)
    teacher = config.teacher is not None and config.teacher.engine_type == "rollout"
    refused = {
        "actor.use_lora": (config.actor.use_lora, "train all weights"),
        "actor._version and rollout._version v2": ("v2" in versions, "take v1"),
        "rollout.return_routed_experts": (config.rollout.return_routed_experts, "leave it out"),
        "rollout.agent.mode online": (config.rollout.agent.mode == "online", "pass a workflow"),
        "teacher.engine_type rollout": (teacher, "let it be a training engine"),
        "colocation of actor or rollout": (
            any(SchedulingStrategyType(one.type) is _TOGETHER for one in placed),
            "rollouts have pods of their own: leave scheduling_strategy out",
        ),
    }
    for name, (wanted, instead) in refused.items():
        if wanted:
            raise RollcallError(f"PPOTrainer: {name} is not supported with Rollcall; {instead}")


def _check_request(req: ModelRequest) -> None:
    asked = {name: (getattr(req.gconfig, name), neutral) for name, neutral in _NEUTRAL.items()}
    images = bool(req.image_data or req.vision_msg_vllm)
    refuse_unless_neutral({**asked, "image_data": (images, False)})
    if len(req.input_ids) >= req.gconfig.max_tokens:
        raise RollcallError(
            f"generate: the prompt has {len(req.input_ids)} tokens, and gconfig.max_tokens is "
            f"{req.gconfig.max_tokens}, for prompt and response: raise it"
        )
