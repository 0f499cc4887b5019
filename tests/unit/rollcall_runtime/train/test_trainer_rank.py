"""What each rank does in a step, and what a checkpoint keeps, with an engine that only counts."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from rollcall_protocol.job_config import CheckpointConfig, LossConfig, OptimizerConfig
from rollcall_protocol.prompts.ledger_state import LedgerState
from rollcall_protocol.wire.ids import Lineage, Version
from rollcall_runtime.sync.weights.snapshots import Snapshotter, WeightSnapshotDraft
from rollcall_runtime.train.batch import Batch
from rollcall_runtime.train.batch_broadcast import LeaderSignal
from rollcall_runtime.train.checkpoint import files
from rollcall_runtime.train.checkpoint.checkpointer import KEPT, Checkpointer, TrainState
from rollcall_runtime.train.losses import LossFunction, policy_loss
from rollcall_runtime.train.train_engine import EngineSetup, T, TrainEngine, UpdateStats, WeightInfo
from rollcall_runtime.train.trainer_rank import RankSettings, TrainerRank
from rollcall_runtime.train.weight_recovery import RecoveredWeights
from rollcall_runtime.worker.errors import SpecError
from tests.unit.rollcall_runtime.train.test_trainer_loop import batch

LEDGER = LedgerState(cursor=3, pending=(1, 2))
KEPT_STATE = TrainState(number=9, ledger=LEDGER)


class CountingEngine(TrainEngine):
    """Its weight is the number of optimizer steps; other ranks are played by `script`."""

    def __init__(self, *, rank: int = 0, script: Sequence[LeaderSignal | None] = ()) -> None:
        super().__init__(EngineSetup("builtin:reverse-tiny", OptimizerConfig("adamw", 1e-3)))
        self.rank, self.script = rank, list(script)
        self.updates = 0
        self.shared: list[Batch | LeaderSignal | None] = []
        self.gathered = 0
        self.others: list[Any] = []  # what they gather

    def initialize(self) -> None:
        self.updates = 0

    def train_batch(
        self, minibatches: Sequence[Batch], loss_function: LossFunction
    ) -> list[UpdateStats]:
        self.updates += len(minibatches)
        return [UpdateStats(0.0, 0.0, part.rows, {}) for part in minibatches]

    def infer(self, batch: Batch) -> Tensor:
        return torch.zeros(batch.rows, batch.tokens.shape[1] - 1)

    def weight_info(self) -> list[WeightInfo]:
        return [WeightInfo("weight", torch.float32, (1,))]

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        self.gathered += 1
        yield "weight", torch.tensor([float(self.updates)])

    def prepare_checkpoint(self, path: Path, *, state: Mapping[str, Any]) -> Callable[[], None]:
        updates = self.updates

        def write() -> None:
            files.begin_checkpoint(path)
            (files.scratch_path(path) / "updates").write_text(str(updates))
            files.commit_checkpoint(path, state=state)

        return write

    def own_weights(self) -> Iterator[tuple[str, Tensor]]:
        yield "weight", torch.full((1,), 10.0 * self.rank + self.updates)

    def load_checkpoint(self, path: Path) -> dict[str, Any]:
        self.updates = int((path / "updates").read_text())
        return files.read_state(path)

    def load_weights(self, weights: Mapping[str, Tensor] | None) -> None:
        self.updates = int((weights or {})["weight"]) if self.rank == 0 else -1

    def gather(self, value: T) -> list[T]:
        return [value, *self.others]

    def gather_for_checkpoint(self, value: T) -> list[T]:
        return [value]

    def broadcast(self, work: Batch | LeaderSignal | None) -> Batch | LeaderSignal:
        self.shared.append(work)
        if self.rank == 0:
            assert work is not None
            return work
        said = self.script.pop(0)
        return said if said is not None else some_rows()

    @property
    def data_parallel_rank(self) -> int:
        return self.rank

    @property
    def data_parallel_size(self) -> int:
        return 1 + len(self.others)

    def close(self) -> None:
        pass


def some_rows() -> Batch:
    return Batch(
        tokens=torch.zeros(2, 3, dtype=torch.int64),
        mask=torch.ones(2, 2, dtype=torch.bool),
        logprobs=torch.zeros(2, 2),
        versions=torch.zeros(2, 2, dtype=torch.int64),
        advantages=torch.zeros(2),
    )


def rank_of(
    engine: TrainEngine,
    *,
    checkpoint: CheckpointConfig | None = None,
    publish_every: int = 1,
    every_rank_sends: bool = False,
) -> TrainerRank:
    return TrainerRank(
        engine=engine,
        checkpoints=Checkpointer(checkpoint, pod_uid="a-pod"),
        settings=RankSettings(minibatches=2),
        loss=policy_loss(LossConfig("decoupled", 0.2, 5.0)),
        publish_every=publish_every,
        snapshotter=Snapshotter(bucket_bytes=64),
        every_rank_sends=every_rank_sends,
    )


def test_a_step_cuts_the_batch_into_minibatches_and_copies_the_new_weights() -> None:
    rank = rank_of(CountingEngine())
    rank.start()
    result = rank.lead(batch(0), KEPT_STATE)
    assert [update.tokens for update in result.updates] == [1, 1]
    assert result.draft is not None
    ((name, weight),) = result.draft.finish().tensors()
    assert (name, float(weight)) == ("weight", 2.0)


def test_weights_are_copied_only_when_a_version_is_due() -> None:
    rank = rank_of(CountingEngine(), publish_every=2)
    rank.start()
    drafts = [rank.lead(batch(0), TrainState()).draft for _ in range(4)]
    assert [draft is not None for draft in drafts] == [False, True, False, True]


def test_another_rank_follows_until_the_stop_signal() -> None:
    script = [
        LeaderSignal.IDLE,
        LeaderSignal.BEGIN,
        None,
        LeaderSignal.IDLE,
        None,
        LeaderSignal.STOP,
    ]
    engine = CountingEngine(rank=1, script=script)
    rank = rank_of(engine)
    rank.start()
    engine.others = [None]
    drafts: list[WeightSnapshotDraft] = []
    rank.follow(drafts.append)
    assert not drafts
    assert rank.step == 2
    assert engine.gathered == 3, "it helps to gather each version, the first one included"
    assert set(engine.shared) == {None}


def test_every_rank_copies_its_own_part_when_all_of_them_send() -> None:
    engine = CountingEngine(rank=1, script=[LeaderSignal.BEGIN, None, LeaderSignal.STOP])
    rank = rank_of(engine, every_rank_sends=True)
    rank.start()
    drafts: list[WeightSnapshotDraft] = []
    rank.follow(drafts.append)
    values = [float(value) for d in drafts for _, value in d.finish().tensors()]
    assert values == [10.0, 12.0]
    assert engine.gathered == 0


def test_a_trainer_resumes_from_the_newest_checkpoint_with_its_prompts(tmp_path: Path) -> None:
    config = CheckpointConfig(every_steps=2, path=str(tmp_path))
    rank = rank_of(CountingEngine(), checkpoint=config)
    assert rank.start() == TrainState()
    for _ in range(5):
        rank.lead(batch(0), KEPT_STATE)
    assert rank.checkpoints.wait(10)

    engine = CountingEngine()
    rank = rank_of(engine, checkpoint=config)
    assert rank.start() == TrainState(4, 9, LEDGER)
    assert (rank.step, engine.updates) == (4, 8)


def test_what_was_not_saved_is_saved_at_the_end_and_old_ones_go(tmp_path: Path) -> None:
    config = CheckpointConfig(every_steps=1, path=str(tmp_path))
    rank = rank_of(CountingEngine(), checkpoint=config)
    rank.start()
    for _ in range(4):
        rank.lead(batch(0), TrainState())
    assert len(files.list_checkpoints(tmp_path)) == KEPT
    rank.stop(KEPT_STATE)
    resumed = rank_of(CountingEngine(), checkpoint=config)
    assert resumed.start() == TrainState(4), "there was nothing to save"

    config = CheckpointConfig(every_steps=100, path=str(tmp_path))
    rank = rank_of(CountingEngine(), checkpoint=config)
    rank.start()
    rank.lead(batch(0), TrainState())
    rank.stop(KEPT_STATE)
    assert rank_of(CountingEngine(), checkpoint=config).start() == TrainState(5, 9, LEDGER)


def test_without_a_volume_nothing_is_saved_nor_resumed() -> None:
    rank = rank_of(CountingEngine())
    assert rank.start() == TrainState()
    rank.lead(batch(0), TrainState())
    rank.stop(KEPT_STATE)


def test_a_checkpoint_of_another_release_has_an_error_of_its_own(tmp_path: Path) -> None:
    config = CheckpointConfig(every_steps=1, path=str(tmp_path))
    path = files.checkpoint_path(tmp_path, 3)
    files.begin_checkpoint(path)
    (files.scratch_path(path) / "updates").write_text("3")
    files.commit_checkpoint(path, state={"steps": 3})
    with pytest.raises(ValueError, match="was not written by this release"):
        rank_of(CountingEngine(), checkpoint=config).start()


def test_an_interval_below_one_step_is_the_specs_fault(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"spec.trainer.checkpoint.everySteps: must be at least 1"):
        Checkpointer(CheckpointConfig(every_steps=0, path=str(tmp_path)), pod_uid="a-pod")


def test_all_ranks_take_the_weights_that_rank_0_got_back() -> None:
    taken = RecoveredWeights(Version(Lineage(1, 1), 9), 5, {"weight": torch.tensor([8.0])})
    rank = rank_of(CountingEngine())
    rank.start()
    draft = rank.begin(taken)
    assert draft is not None
    ((_, weight),) = draft.finish().tensors()
    assert (rank.step, float(weight)) == (5, 8.0)

    class Other(CountingEngine):
        def gather(self, value: T) -> list[T]:
            return [cast("T", 5), value]

    other = rank_of(Other(rank=1, script=[LeaderSignal.BEGIN, LeaderSignal.STOP]))
    other.start()
    other.follow(lambda _: None)
    assert other.step == 5
