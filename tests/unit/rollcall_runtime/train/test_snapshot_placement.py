"""What weights are sent as: by the setting, the trainer's precision, and whether they come back."""

from typing import Any

import pytest
import torch

from rollcall_protocol.job_config import DeltaConfig, EngineRef, GroupConfig
from rollcall_runtime.train.snapshot_placement import has_cheap_checks, make_snapshotter, sent_dtype
from tests.unit.rollcall_runtime.jobs import job_config


def sent(dtype: str, precision: str, **changes: Any) -> torch.dtype:
    job = job_config(weight_sync={"dtype": dtype}, **changes)
    return sent_dtype(job, precision=precision)


@pytest.mark.parametrize(
    ("dtype", "precision", "expected"),
    [
        ("Auto", "fp32", torch.float32),
        ("Auto", "bf16", torch.bfloat16),
        ("Float32", "bf16", torch.float32),
        ("BFloat16", "fp32", torch.bfloat16),
    ],
)
def test_weights_are_sent_as_the_trainer_computes_with_them_unless_a_dtype_is_set(
    dtype: str, precision: str, expected: torch.dtype
) -> None:
    assert sent(dtype, precision) == expected


def test_weights_that_a_trainer_takes_back_keep_their_bits() -> None:
    assert sent("Auto", "bf16", recover_from="Rollouts") == torch.float32
    assert sent("BFloat16", "bf16", recover_from="Rollouts") == torch.bfloat16, "as asked"


@pytest.mark.parametrize("staging", ["Host", "Streamed"])
def test_every_snapshotter_has_it(staging: str) -> None:
    sync = job_config(weight_sync={"staging": staging}).weight_sync
    taker = make_snapshotter(sync, senders=1, device="cpu", dtype=torch.bfloat16)
    snapshot = taker.take([("w", torch.ones(8))], timeout=0).finish()
    (spec,) = snapshot.manifest.tensors
    assert (spec.dtype, spec.nbytes) == ("bfloat16", 16)


@pytest.mark.parametrize(
    ("sync", "recover_from", "cheap"),
    [
        ({}, "Checkpoint", True),
        ({"staging": "Device"}, "Checkpoint", True),
        ({"verify": "Digest"}, "Checkpoint", False),
        ({"staging": "Streamed"}, "Checkpoint", False),
        ({"delta": DeltaConfig()}, "Checkpoint", False),
        ({"engine": "store"}, "Checkpoint", False),
        ({"groups": (GroupConfig("other", EngineRef("store", {})),)}, "Checkpoint", False),
        ({}, "Rollouts", False),
    ],
)
def test_checksums_do_where_weights_go_from_memory_to_members_alone(
    sync: dict[str, Any], recover_from: str, cheap: bool
) -> None:
    job = job_config(weight_sync=sync, recover_from=recover_from)
    assert has_cheap_checks(job, device="cpu") == cheap


@pytest.mark.parametrize(("cheap", "check"), [(True, "xxh3"), (False, "blake3")])
def test_a_snapshotter_describes_weights_so(cheap: bool, check: str) -> None:
    taker = make_snapshotter(job_config().weight_sync, senders=1, device="cpu", cheap=cheap)
    snapshot = taker.take([("w", torch.ones(8))], timeout=0).finish()
    assert snapshot.manifest.check == check
