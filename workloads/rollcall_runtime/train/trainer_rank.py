"""What every rank of the trainer does at each step, in step with the others."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from rollcall_protocol.job_config import SampleRecordingConfig
from rollcall_protocol.prompts.prompt_ledger import CompletedPrompt
from rollcall_runtime.models import model_source
from rollcall_runtime.sync.weights.snapshots import Snapshotter, WeightSnapshotDraft
from rollcall_runtime.train.batch_broadcast import LeaderSignal, broadcast_work
from rollcall_runtime.train.checkpoint.checkpointer import Checkpointer, TrainState
from rollcall_runtime.train.final_export import FinalExport
from rollcall_runtime.train.finite_weights import FiniteWeights
from rollcall_runtime.train.health import POLICY_ADVICE, TrainingHealth
from rollcall_runtime.train.policy_batch import policy_batch
from rollcall_runtime.train.process_group import TrainerProcessGroup
from rollcall_runtime.train.roles.build_roles import model_named_by
from rollcall_runtime.train.roles.policy_step import PolicyStep, PolicyStepResult
from rollcall_runtime.train.samples.sample_choice import chosen_groups
from rollcall_runtime.train.samples.token_figures import (
    TokenFigures,
    token_figures,
    with_recorded_rows,
)
from rollcall_runtime.train.train_batch import TrainBatch
from rollcall_runtime.train.weight_recovery import RecoveredWeights
from rollcall_runtime.worker.errors import SpecError

CLOSE_SECONDS = 5.0  # to wait for a save before the engine is freed
_NOT_RECORDED = SampleRecordingConfig(share=0.0)
SNAPSHOT_SECONDS = 150.0  # to wait for a buffer: longer than anything may hold one


@dataclass(frozen=True, slots=True)
class StepResult:
    """One step. `draft`: a copy of what this rank sends, if a version is due; times in seconds.

    `train_seconds` are without those that `policy` waited for its reference. `tokens`: figures of
    the tokens of rows that are recorded, by the row's number.
    """

    policy: PolicyStepResult
    draft: WeightSnapshotDraft | None
    train_seconds: float
    snapshot_seconds: float
    tokens: Mapping[int, TokenFigures] = field(default_factory=dict)


class TrainerRank:
    """One rank; owns `ranks` and the engines of `policy`.

    All methods block and belong to one thread. All but `close` are collective.
    `publish_every`: steps between versions, 0 for none; so that other ranks take part in them.
    """

    def __init__(
        self,
        *,
        ranks: TrainerProcessGroup,
        policy: PolicyStep,
        health: TrainingHealth,
        checkpoints: Checkpointer,
        snapshotter: Snapshotter,
        publish_every: int,
        export: FinalExport,
        every_rank_sends: bool = False,
        recording: SampleRecordingConfig = _NOT_RECORDED,
    ) -> None:
        self.step = 0
        self.checkpoints, self.health = checkpoints, health
        self._ranks, self._policy, self._engine = ranks, policy, policy.actor.engine
        self._snapshotter, self._export = snapshotter, export
        self._publish_every, self._every_rank_sends = publish_every, every_rank_sends
        self._recording = recording
        self._shards: list[tuple[str, torch.Tensor]] | None = None  # on the meta device

    def start(self) -> TrainState:
        """Build the models and resume. Then rank 0 says `begin`, and the others `follow`."""
        for engine in self._policy.engines:
            with model_named_by(engine.setup.model_field):
                engine.initialize()
        state = self.checkpoints.restore(self._policy.checkpointed)
        self.step = state.step
        self._export.check(self.step)
        return state

    def snapshot(self) -> WeightSnapshotDraft | None:
        """Copy the weights as they are, or this rank's part of them if every rank sends.

        None on other ranks if only rank 0 does. Waits while all buffers are in use. SpecError on
        all ranks if a weight is not finite: no rollout could sample from such a model.
        """
        weights = FiniteWeights()
        draft = self._copy(weights)
        bad = weights.first_bad()
        if self._ranks.any(bool(bad)):
            raise self._not_finite(next(filter(None, self._ranks.gather(bad))))
        return draft

    def _copy(self, weights: FiniteWeights) -> WeightSnapshotDraft | None:
        if self._every_rank_sends:
            layout, tensors = self._shard_layout(), self._own_shards()
        elif self._ranks.rank > 0:
            for _ in self._engine.named_weights():
                pass  # gathering is collective
            return None
        else:
            layout, tensors = self._whole_layout(), self._engine.named_weights()
        # Gathered or merged one by one, so that no more than two are in memory besides the copy.
        watched = weights.watch(tensors)
        return self._snapshotter.take(watched, layout=layout, timeout=SNAPSHOT_SECONDS)

    def _not_finite(self, name: str) -> SpecError:
        if self.step == 0:
            problem = f"the model's weights are not finite ({name}): copy the whole model again"
            return SpecError(model_source.FIELD, problem)
        problem = f"the weights of step {self.step} are not finite ({name}): {POLICY_ADVICE}"
        advice = "training goes on from the last checkpoint once the trainer is restarted"
        return SpecError("spec.algorithm.optimizer.learningRate", f"{problem}; {advice}")

    def lead(
        self, answered: Sequence[CompletedPrompt], kept: TrainState, *, version: int
    ) -> StepResult:
        """Rank 0: train weights of `version` on a batch.

        `kept` goes into the checkpoint, if one is due. SpecError when too many steps in a row had
        to be skipped.
        """
        prompts = [item.lease.tokens for item in answered]
        samples = [item.completion.samples for item in answered]
        batch = policy_batch(prompts, samples, version=version)
        numbers = [item.lease.prompt for item in answered]
        recorded = chosen_groups(self._recording, step=self.step + 1, prompts=numbers)
        batch = with_recorded_rows(batch, recorded)
        return self._train(broadcast_work(self._ranks, batch), kept)

    def begin(self, taken: RecoveredWeights | None) -> WeightSnapshotDraft | None:
        """Rank 0: have all ranks copy their weights, after they have `taken` those there are."""
        broadcast_work(self._ranks, LeaderSignal.BEGIN)
        return self._begin(taken)

    def signal(self, signal: LeaderSignal) -> None:
        """Rank 0: keep the other ranks waiting, or end their work."""
        broadcast_work(self._ranks, signal)

    def follow(
        self,
        offer: Callable[[WeightSnapshotDraft], None],
        *,
        withdraw: Callable[[], None] = lambda: None,
    ) -> None:
        """Other ranks: do what rank 0 does, until it says STOP.

        `offer` gets their parts; `withdraw` is called before each step.
        """
        while True:
            work = broadcast_work(self._ranks, None)
            if work is LeaderSignal.STOP:
                return
            draft = self._begin(None) if work is LeaderSignal.BEGIN else None
            if isinstance(work, TrainBatch):
                withdraw()
                draft = self._train(work, TrainState()).draft
            if draft is not None:
                offer(draft)

    def stop(self, kept: TrainState) -> None:
        """Save what would be lost, and export what is done. Rank 0 signals STOP before."""
        self.checkpoints.finish(self._policy.checkpointed, replace(kept, step=self.step))
        self._export.write(self._engine, self.step)

    def close(self) -> None:
        """Free everything, unless a save that hangs still uses it; then the process ends soon."""
        if self.checkpoints.wait(CLOSE_SECONDS):
            for engine in self._policy.engines:
                engine.close()
            self._ranks.close()

    def _begin(self, taken: RecoveredWeights | None) -> WeightSnapshotDraft | None:
        step = self._ranks.broadcast_value(taken.step if taken else None)
        if step is not None:
            self._engine.load_weights(taken.weights if taken else None)
            self.step = step
        return self.snapshot()

    def _whole_layout(self) -> list[tuple[str, torch.Tensor]]:
        """Names, dtypes and shapes of all weights, as tensors on the meta device."""
        return [
            (info.name, torch.empty(info.shape, dtype=info.dtype, device="meta"))
            for info in self._engine.weight_info()
        ]

    def _own_shards(self) -> Iterator[tuple[str, torch.Tensor]]:
        return ((shard.info.name, shard.tensor) for shard in self._engine.weight_shards())

    def _shard_layout(self) -> list[tuple[str, torch.Tensor]]:
        """Collective the first time: which rows this rank sends shows when they are made."""
        if self._shards is None:
            self._shards = [(name, tensor.to("meta")) for name, tensor in self._own_shards()]
        return self._shards

    def _train(self, batch: TrainBatch | LeaderSignal, kept: TrainState) -> StepResult:
        if isinstance(batch, LeaderSignal):
            raise TypeError(f"a batch was expected, not {batch.name}")
        began = time.perf_counter()
        result = self._policy.run(batch, step=self.step)
        self.step += 1
        self.health.step_ended(self.step, [*result.actor, *result.critic], batch)
        tokens = token_figures(self._ranks, batch, result.advantages, result.mismatch)
        trained = time.perf_counter()
        computed = trained - began - (result.wait_for_reference or 0.0)
        due = self._publish_every and self.step % self._publish_every == 0
        draft = self.snapshot() if due else None
        copied = time.perf_counter()
        self.checkpoints.check()
        if self.checkpoints.due(self.step):
            self.checkpoints.save(self._policy.checkpointed, replace(kept, step=self.step))
        return StepResult(result, draft, computed, copied - trained, tokens)
