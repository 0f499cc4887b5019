"""Requests and answers arrive as they were sent; whatever is not within the bounds is refused."""

import json
import math
from typing import Any

import pytest
import torch
from safetensors.torch import load, save
from torch import Tensor

from rollcall_runtime.models.open_model import open_model
from rollcall_runtime.train.reference_pods.exchange import (
    HEADER_BYTES,
    REQUEST_POSITIONS,
    ExchangeError,
    RequestBounds,
    answer_bytes,
    decode_answer,
    decode_request,
    encode_answer,
    encode_request,
)
from tests.unit.rollcall_runtime.jobs import job_config
from tests.unit.rollcall_runtime.train.reference_pods.pods import BOUNDS, model, rows

BATCH = rows(3, 1, 5)


def changed(**tensors: Tensor) -> bytes:
    """A request with other tensors."""
    return save({**load(encode_request(BATCH)), **tensors})


def test_a_request_holds_the_rows_and_no_extras() -> None:
    sent = BATCH.with_extras(rewards=torch.ones(3))
    found = decode_request(encode_request(sent), BOUNDS)
    for name in ("tokens", "targets", "mask", "lengths"):
        torch.testing.assert_close(getattr(found, name), getattr(BATCH, name))
    assert found.extras == {}


def test_the_bounds_come_from_the_job_and_the_references_model() -> None:
    job = job_config(algorithm={"prompts_per_step": 3, "group_size": 5})
    tiny = open_model("builtin:reverse-tiny")
    bounds = RequestBounds.of(job, tiny)
    assert bounds.rows == 15
    assert bounds.vocabulary == tiny.vocabulary
    assert bounds.longest_row == tiny.positions
    assert bounds.positions == REQUEST_POSITIONS
    largest = rows(*[32] * 2)
    assert len(encode_request(largest)) <= BOUNDS.request_bytes
    assert BOUNDS.request_bytes == HEADER_BYTES + 64 * 9 + 8 * 4


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "no safetensors file"),
        (b"\xff" * 100, "no safetensors file"),
        (json.dumps({"tokens": [1]}).encode(), "no safetensors file"),
        (save({"tokens": torch.zeros(1, 1)}), r"not \['lengths', 'mask', 'targets', 'tokens'\]"),
        (changed(more=torch.zeros(1)), "the body has"),
        (changed(tokens=BATCH.tokens), "tokens is torch.int64, not torch.int32"),
        (changed(tokens=torch.zeros(3, dtype=torch.int32)), r"tokens is \[3\], not \[rows"),
        (changed(targets=torch.zeros(3, 4, dtype=torch.int32)), r"targets is \[3, 4\], not \[3, 5"),
        (changed(mask=torch.ones(2, 5, dtype=torch.uint8)), r"mask is \[2, 5\]"),
        (changed(lengths=torch.ones(2, dtype=torch.int32)), r"lengths is \[2\], not \[3\]"),
        (changed(lengths=torch.tensor([3, 1, 6]).int()), "lengths are not from 1 to 5"),
        (changed(lengths=torch.tensor([3, 0, 5]).int()), "lengths are not from 1 to 5"),
        (changed(tokens=BATCH.tokens.int() + 13), "model knows 0 to 12"),
        (changed(targets=BATCH.targets.int() - 13), "targets are from -"),
        (changed(mask=torch.ones(3, 5, dtype=torch.uint8)), "true in the padding"),
        (encode_request(rows(33)), "a row of 33 tokens; the reference's model takes 1 to 32"),
        (encode_request(rows(*[1] * 9)), "9 rows; a request has 1 to 8"),
        (encode_request(rows(*[13] * 5)), "65 positions; a request has 64 at most"),
        (encode_request(BATCH.select([])), "0 rows"),
    ],
)
def test_a_request_that_does_not_fit_is_refused_with_what_is_wrong(body: bytes, says: str) -> None:
    with pytest.raises(ExchangeError, match=says):
        decode_request(body, BOUNDS)


def test_an_answer_is_0_outside_the_mask() -> None:
    wanted = model(BATCH)
    anything = wanted.where(BATCH.mask, torch.tensor(math.nan))
    body = encode_answer(anything)
    assert len(body) <= answer_bytes(BATCH)
    torch.testing.assert_close(decode_answer(body, BATCH), wanted)


def _answers() -> dict[str, Any]:
    good = model(BATCH)
    return {
        "is \\[3, 4\\], not \\[3, 5\\]": encode_answer(good[:, :4]),
        "is torch.float16": encode_answer(good.half()),
        "not finite": encode_answer(good - math.inf),
        "above 0": encode_answer(good + 2.0),
        "no safetensors file": b"{}",
        "not \\['logprobs'\\]": encode_request(BATCH),
    }


@pytest.mark.parametrize("says", _answers())
def test_an_answer_that_no_model_gives_is_not_taken(says: str) -> None:
    with pytest.raises(ExchangeError, match=says):
        decode_answer(_answers()[says], BATCH)
