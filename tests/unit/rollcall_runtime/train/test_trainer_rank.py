"""What each rank does in a step, and what a checkpoint keeps, with an engine that only counts."""

import math
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from rollcall_protocol.algorithm_settings import AlgorithmSettings
from rollcall_protocol.job_config import CheckpointConfig, HealthConfig, SampleRecordingConfig
from rollcall_protocol.prompts.ledger_state import LedgerState
from rollcall_protocol.wire.ids import Lineage, Version
from rollcall_runtime.sync.weights.snapshots import Snapshotter, WeightSnapshotDraft
from rollcall_runtime.train import final_export
from rollcall_runtime.train.batch_broadcast import LeaderSignal
from rollcall_runtime.train.checkpoint import files
from rollcall_runtime.train.checkpoint.checkpointer import KEPT, Checkpointer, TrainState
from rollcall_runtime.train.final_export import FinalExport
from rollcall_runtime.train.health import TrainingHealth
from rollcall_runtime.train.roles.actor import Actor
from rollcall_runtime.train.roles.policy_step import PolicyStep
from rollcall_runtime.train.train_engine import WeightInfo, WeightShard
from rollcall_runtime.train.trainer_rank import TrainerRank
from rollcall_runtime.train.weight_recovery import RecoveredWeights
from rollcall_runtime.worker.errors import SpecError
from tests.unit.rollcall_runtime.train.counting_engine import CountingEngine
from tests.unit.rollcall_runtime.train.fake_ranks import FakeRanks, as_ranks
from tests.unit.rollcall_runtime.train.test_trainer_loop import batch

LAST_STEP = 2
LEDGER = LedgerState(cursor=3, pending=(1, 2))
KEPT_STATE = TrainState(number=9, ledger=LEDGER)


HEADER = {
    "shape": [2, 2],
    "extras": {"rewards": [2], "groups": [2], "behaviour_logprobs": [2, 2], "same_version": [2, 2]},
}
"""Of a batch; its tensors are those that FakeRanks receives."""


def signal(which: LeaderSignal) -> dict[str, int]:
    return {"signal": int(which)}


def rank_of(
    engine: CountingEngine,
    *,
    checkpoint: CheckpointConfig | None = None,
    publish_every: int = 1,
    every_rank_sends: bool = False,
    export_path: str = "",
    recording: SampleRecordingConfig | None = None,
) -> TrainerRank:
    ranks = as_ranks(engine.ranks)
    return TrainerRank(
        ranks=ranks,
        policy=PolicyStep(
            AlgorithmSettings(), actor=Actor(engine, AlgorithmSettings(), minibatches=2)
        ),
        health=TrainingHealth(HealthConfig(), folder=None, rank=ranks.rank),
        checkpoints=Checkpointer(checkpoint, ranks=ranks, pod_uid="a-pod"),
        publish_every=publish_every,
        snapshotter=Snapshotter(bucket_bytes=64),
        export=FinalExport(export_path, last_step=LAST_STEP, ranks=ranks),
        every_rank_sends=every_rank_sends,
        recording=recording or SampleRecordingConfig(share=0.0),
    )


def test_a_step_cuts_the_batch_into_minibatches_and_copies_the_new_weights() -> None:
    rank = rank_of(CountingEngine())
    rank.start()
    result = rank.lead(batch(0), KEPT_STATE, version=0)
    assert [update.tokens for update in result.policy.actor] == [1, 1]
    assert result.draft is not None
    ((name, weight),) = result.draft.finish().tensors()
    assert (name, float(weight)) == ("weight", 2.0)


def test_weights_are_copied_only_when_a_version_is_due() -> None:
    rank = rank_of(CountingEngine(), publish_every=2)
    rank.start()
    drafts = [rank.lead(batch(0), TrainState(), version=0).draft for _ in range(4)]
    assert [draft is not None for draft in drafts] == [False, True, False, True]


def test_responses_of_the_steps_that_the_job_names_are_recorded() -> None:
    recording = SampleRecordingConfig(share=0.0, all_every_steps=2)
    rank = rank_of(CountingEngine(), recording=recording)
    rank.start()
    found = [rank.lead(batch(0), TrainState(), version=0).tokens for _ in range(4)]
    assert [sorted(figures) for figures in found] == [[], [0, 1], [], [0, 1]]
    assert [len(figures.advantages) for figures in found[1].values()] == [2, 2]


class Spoilt(CountingEngine):
    """Its weight is infinite after `sound` optimizer steps."""

    def __init__(self, *, sound: int) -> None:
        super().__init__()
        self._sound = sound

    def named_weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        yield "weight", torch.tensor([1.0 if self.updates <= self._sound else math.inf])


def test_weights_that_are_not_finite_end_training_before_they_are_published() -> None:
    rank = rank_of(Spoilt(sound=2))
    rank.start()
    rank.begin(None)
    assert rank.lead(batch(0), TrainState(), version=0).draft is not None
    with pytest.raises(SpecError) as caught:
        rank.lead(batch(0), TrainState(), version=0)
    assert caught.value.field == "spec.algorithm.optimizer.learningRate"
    assert caught.value.problem.startswith("the weights of step 2 are not finite (weight): lower ")


def test_a_model_whose_weights_are_not_finite_is_not_trained() -> None:
    rank = rank_of(Spoilt(sound=-1))
    rank.start()
    with pytest.raises(SpecError, match=r"^spec.model.path: the model's weights are not finite"):
        rank.begin(None)


def test_weights_that_are_not_finite_on_another_rank_end_this_one_too() -> None:
    engine = CountingEngine()
    rank = rank_of(engine)
    rank.start()
    rank.lead(batch(0), TrainState(), version=0)
    engine.ranks.others = ["layers.1"]
    with pytest.raises(SpecError, match=r"of step 1 are not finite \(layers.1\)"):
        rank.snapshot()


def test_another_rank_follows_until_the_stop_signal() -> None:
    said = [
        signal(LeaderSignal.IDLE),
        signal(LeaderSignal.BEGIN),
        None,  # rank 0 has no weights of a later step
        HEADER,
        signal(LeaderSignal.IDLE),
        HEADER,
        signal(LeaderSignal.STOP),
    ]
    engine = CountingEngine(FakeRanks(rank=1, said=said))
    rank = rank_of(engine)
    rank.start()
    drafts: list[WeightSnapshotDraft] = []
    rank.follow(drafts.append)
    assert not drafts
    assert rank.step == 2
    assert engine.gathered == 3, "it helps to gather each version, the first one included"
    assert set(engine.ranks.broadcasts) == {None}


def test_every_rank_copies_its_own_part_when_all_of_them_send() -> None:
    said = [signal(LeaderSignal.BEGIN), None, HEADER, signal(LeaderSignal.STOP)]
    engine = CountingEngine(FakeRanks(rank=1, said=said))
    rank = rank_of(engine, every_rank_sends=True)
    rank.start()
    drafts: list[WeightSnapshotDraft] = []
    rank.follow(drafts.append)
    values = [float(value) for d in drafts for _, value in d.finish().tensors()]
    assert values == [10.0, 12.0]
    assert engine.gathered == 0


def test_a_ranks_own_part_is_copied_tensor_by_tensor() -> None:
    """So that two of them exist at most beside the copy: an engine may gather or merge them."""
    alive: list[weakref.ref[torch.Tensor]] = []

    class Merging(CountingEngine):
        def weight_shards(self) -> Iterator[WeightShard]:
            for number in range(4):
                assert sum(reference() is not None for reference in alive) <= 1
                tensor = torch.full((2, 3), float(self.updates + number))
                alive.append(weakref.ref(tensor))
                info = WeightInfo(str(number), torch.float32, (4, 3))
                yield WeightShard(info, 2 * self.ranks.rank, tensor)
                del tensor

    rank = rank_of(Merging(), every_rank_sends=True)
    rank.start()
    drafts = [rank.begin(None), rank.lead(batch(0), TrainState(), version=0).draft]
    taken = [dict(draft.finish().tensors()) for draft in drafts if draft is not None]
    assert [[float(tensor[1, 2]) for tensor in found.values()] for found in taken] == [
        [0.0, 1.0, 2.0, 3.0],
        [2.0, 3.0, 4.0, 5.0],
    ]


def test_a_trainer_resumes_from_the_newest_checkpoint_with_its_prompts(tmp_path: Path) -> None:
    config = CheckpointConfig(every_steps=2, path=str(tmp_path))
    rank = rank_of(CountingEngine(), checkpoint=config)
    assert rank.start() == TrainState()
    for _ in range(5):
        rank.lead(batch(0), KEPT_STATE, version=0)
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
        rank.lead(batch(0), TrainState(), version=0)
    assert len(files.list_checkpoints(tmp_path)) == KEPT
    rank.stop(KEPT_STATE)
    resumed = rank_of(CountingEngine(), checkpoint=config)
    assert resumed.start() == TrainState(4), "there was nothing to save"

    config = CheckpointConfig(every_steps=100, path=str(tmp_path))
    rank = rank_of(CountingEngine(), checkpoint=config)
    rank.start()
    rank.lead(batch(0), TrainState(), version=0)
    rank.stop(KEPT_STATE)
    assert rank_of(CountingEngine(), checkpoint=config).start() == TrainState(5, 9, LEDGER)


def test_the_model_is_exported_once_and_after_the_last_step_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exported: list[int] = []

    def export_weights(engine: CountingEngine, folder: Path) -> None:
        folder.mkdir()
        exported.append(engine.updates)

    monkeypatch.setattr(final_export, "export_weights", export_weights)
    saved = CheckpointConfig(every_steps=1, path=str(tmp_path / "saved"))
    for _ in range(LAST_STEP):  # it is stopped after each step, and starts again
        rank = rank_of(CountingEngine(), checkpoint=saved, export_path=str(tmp_path / "out"))
        rank.start()
        assert exported == []
        rank.lead(batch(0), TrainState(), version=0)
        rank.stop(TrainState())
    assert exported == [2 * LAST_STEP], "each step has two minibatches"
    over = rank_of(CountingEngine(), checkpoint=saved, export_path=str(tmp_path / "out"))
    over.start()
    over.stop(TrainState())
    assert len(exported) == 1


def test_without_a_volume_nothing_is_saved_nor_resumed() -> None:
    rank = rank_of(CountingEngine())
    assert rank.start() == TrainState()
    rank.lead(batch(0), TrainState(), version=0)
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
        rank_of(CountingEngine(), checkpoint=CheckpointConfig(0, str(tmp_path)))


def test_all_ranks_take_the_weights_that_rank_0_got_back() -> None:
    taken = RecoveredWeights(Version(Lineage(1, 1), 9), 5, {"weight": torch.tensor([8.0])})
    rank = rank_of(CountingEngine())
    rank.start()
    draft = rank.begin(taken)
    assert draft is not None
    ((_, weight),) = draft.finish().tensors()
    assert (rank.step, float(weight)) == (5, 8.0)

    said = [signal(LeaderSignal.BEGIN), 5, signal(LeaderSignal.STOP)]
    other = rank_of(CountingEngine(FakeRanks(rank=1, said=said)))
    other.start()
    other.follow(lambda _: None)
    assert other.step == 5


def test_a_rank_that_ends_leaves_the_process_group() -> None:
    engine = CountingEngine()
    rank_of(engine).close()
    assert engine.ranks.closed
