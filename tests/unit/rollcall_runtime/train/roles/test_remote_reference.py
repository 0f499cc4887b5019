"""A reference in pods of its own gives what the trainer's gives, for every rank's rows."""

from contextlib import ExitStack
from typing import Any, cast

import pytest
import torch

from rollcall_protocol.algorithm_settings import preset
from rollcall_protocol.job_config import EngineRef, JobConfig, ReferenceConfig, ReferencePodConfig
from rollcall_protocol.train_settings import EngineSettings
from rollcall_runtime.models.open_model import open_model
from rollcall_runtime.train import reference_app
from rollcall_runtime.train.reference_pods.client import Inquiry, ReferenceClient
from rollcall_runtime.train.reference_pods.exchange import (
    RequestBounds,
    decode_answer,
    decode_request,
    encode_answer,
    encode_request,
)
from rollcall_runtime.train.roles import remote_reference
from rollcall_runtime.train.roles.remote_reference import RemoteReference
from rollcall_runtime.train.train_batch import TrainBatch
from rollcall_runtime.worker.environment import Pod, ReferenceEnvironment
from rollcall_runtime.worker.errors import SpecError
from tests.unit.rollcall_runtime.credentials import trust
from tests.unit.rollcall_runtime.jobs import job_config
from tests.unit.rollcall_runtime.train.batches import random_batch
from tests.unit.rollcall_runtime.train.fake_ranks import FakeRanks, as_ranks
from tests.unit.rollcall_runtime.train.reference_pods.pods import model


class Pods:
    """In the place of a ReferenceClient: answers at once, or has these problems first."""

    def __init__(self, *problems: str | Exception, answer: Any = model) -> None:
        self.host, self.problems, self._answer = "reference", list(problems), answer
        self.asked: list[TrainBatch] = []

    def ask(self, inquiry: Inquiry, *, seconds: float) -> str:
        if self.problems:
            problem = self.problems.pop(0)
            if isinstance(problem, Exception):
                raise problem
            return problem
        self.asked += inquiry.parts
        inquiry.answers = [self._answer(part) for part in inquiry.parts]
        return ""


def remote(pods: Pods, ranks: FakeRanks | None = None, **changes: Any) -> RemoteReference:
    return RemoteReference(
        cast("ReferenceClient", pods), ranks=as_ranks(ranks or FakeRanks()), **changes
    )


def other_rank(**changes: Any) -> dict[str, Any]:
    """What another rank gathers."""
    return {"refused": "", "problem": "", "late": False} | changes


def test_rows_come_back_in_their_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_reference, "REQUEST_POSITIONS", 30)
    batch, pods = random_batch(seed=1), Pods()
    reference = remote(pods)
    torch.testing.assert_close(reference.logprobs(batch), model(batch))
    assert len(pods.asked) > 1
    assert all(part.mask.numel() <= 30 for part in pods.asked)
    assert reference.waited is not None


def test_a_rank_asks_for_its_own_rows_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    summed: list[torch.Tensor] = []
    monkeypatch.setattr(torch.distributed, "all_reduce", summed.append)
    batch, pods, ranks = random_batch(seed=2), Pods(), FakeRanks()
    ranks.others = [other_rank()]
    found = remote(pods, ranks).logprobs(batch)
    assert sum(part.rows for part in pods.asked) == batch.rows // 2
    assert summed == [found], "the other ranks' rows are added"


def test_all_ranks_go_on_asking_until_all_have_their_answers() -> None:
    batch = random_batch(seed=1)
    pods = Pods("10.0.0.1: refused", "10.0.0.1: refused")
    torch.testing.assert_close(remote(pods).logprobs(batch), model(batch))
    waiting = FakeRanks()
    waiting.others = [other_rank(problem="10.0.0.1: refused", late=True)]
    with pytest.raises(RuntimeError, match="no answer of the reference in 3600 s: 10"):
        remote(Pods(), waiting).logprobs(batch)


def test_the_wait_has_an_end() -> None:
    pods = Pods(*["reference has no address"] * 3)
    with pytest.raises(RuntimeError, match=r"in 0 s: reference has no address \(reference\)"):
        remote(pods, wait_seconds=0.0).logprobs(random_batch(seed=1))


@pytest.mark.parametrize("rank", ["this", "other"])
def test_what_the_pods_refuse_ends_training_on_all_ranks(rank: str) -> None:
    problem = "its pod 10.0.0.1 refuses a request: too long"
    pods, ranks = Pods(), FakeRanks()
    if rank == "this":
        pods = Pods(SpecError("spec.reference", problem))
    else:
        ranks.others = [other_rank(refused=problem)]
    with pytest.raises(SpecError, match=f"spec.reference: {problem}"):
        remote(pods, ranks).logprobs(random_batch(seed=1))


def test_a_reference_of_its_own_has_no_engine_here() -> None:
    reference = remote(Pods())
    assert reference.engine is None
    reference.step_ended(cast("Any", None), 1)


def test_a_pods_model_gives_what_the_trainers_gives() -> None:
    """Through the bodies that are sent, cut otherwise than in the trainer: the same to 1e-5."""
    job = job_config(
        algorithm={"settings": preset("grpo", kl_coefficient=0.1)},
        reference=ReferenceConfig(host="reference"),
    )
    batch = random_batch(seed=3, prompts=8, group_size=4)
    bounds = RequestBounds.of(job, open_model(job.model))
    with ExitStack() as undo:
        reference = reference_app.open_reference(environment(job), undo)

        def answer(part: TrainBatch) -> torch.Tensor:
            found = reference.logprobs(decode_request(encode_request(part), bounds))
            return decode_answer(encode_answer(found), part)

        expected = reference.logprobs(batch)
        asked = remote(Pods(answer=answer)).logprobs(batch)
        torch.testing.assert_close(asked, expected, atol=1e-5, rtol=0.0)
        assert float(expected.min()) < -1
        assert reference.engine.setup.seed == job.data.seed


def test_a_pod_computes_on_one_rank_as_the_trainers_settings_say() -> None:
    config = {"tensorParallel": 4, "minibatches": 8, "maxTokensPerMicrobatch": 64, "threads": 2}
    job = job_config(trainer_engine=EngineRef("megatron", config))
    with ExitStack() as undo:
        engine = reference_app.open_reference(environment(job), undo).engine
        assert (engine.data_parallel_size, engine.setup.optimizer) == (1, None)
        assert engine.setup.settings == EngineSettings(max_tokens_per_microbatch=64, threads=2)


def environment(job: JobConfig) -> ReferenceEnvironment:
    return ReferenceEnvironment(
        job=job,
        pods=ReferencePodConfig(device="cpu"),
        pod=Pod("reverse-reference-0", "uid", "127.0.0.1"),
        trust=trust(),
    )
