"""Which positions and heads a rank gets, and models that ranks cannot share."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig

from rollcall_protocol.train_settings import EngineSettings
from rollcall_runtime.train.engines.common.context_parallel import ContextParallelRanks, repeats
from rollcall_runtime.train.engines.common.packing import HeadInput, packed_input, padded_input
from rollcall_runtime.train.engines.fsdp2 import Fsdp2Engine
from rollcall_runtime.train.train_batch import TrainExample, collate
from rollcall_runtime.train.train_engine import EngineSetup
from rollcall_runtime.worker.errors import SpecError
from tests.process.engines.tiny_models import tiny_config, tiny_model

BATCH = collate([TrainExample.of_sequence(tokens) for tokens in ([5, 6, 7, 8], [1, 2], [3, 4, 9])])


def of_rank(rank: int, given: HeadInput, *, size: int) -> HeadInput:
    """What one of `size` ranks computes."""
    group: Any = SimpleNamespace(rank=lambda: rank, size=lambda: size)
    return ContextParallelRanks(group).own_part(given)


def joined(parts: list[HeadInput], name: str) -> list[list[int]]:
    found: Tensor = torch.cat([getattr(part, name) for part in parts], dim=1)
    return found.tolist()


def test_ranks_have_equally_many_successive_positions() -> None:
    parts = [of_rank(rank, packed_input(BATCH), size=4) for rank in range(4)]
    assert {part.tokens.shape for part in parts} == {(1, 2)}
    assert joined(parts, "tokens") == [[5, 6, 7, 1, 3, 4, 0, 0]]
    assert joined(parts, "targets") == [[6, 7, 8, 2, 4, 9, 0, 0]]
    assert joined(parts, "mask") == [[True] * 6 + [False] * 2]
    assert joined(parts, "positions") == [[0, 1, 2, 0, 0, 1, 0, 0]]


@pytest.mark.parametrize(
    ("given", "size", "lengths"),
    [
        (packed_input(BATCH), 4, (3, 1, 2, 2)),
        (packed_input(BATCH), 3, (3, 1, 2)),
        (padded_input(BATCH), 2, (3, 1)),
        (padded_input(BATCH), 3, (3,)),
    ],
)
def test_all_ranks_know_all_sequences_and_padding_is_one_more(
    given: HeadInput, size: int, lengths: tuple[int, ...]
) -> None:
    for rank in range(size):
        layout = of_rank(rank, given, size=size).layout
        assert layout is not None
        assert layout.lengths == lengths
        assert layout.ranks is not None


def test_positions_of_padded_rows_count_on_from_rank_to_rank() -> None:
    parts = [of_rank(rank, padded_input(BATCH), size=3) for rank in range(3)]
    assert joined(parts, "positions") == [[0, 1, 2]] * 3


@pytest.mark.parametrize(
    ("heads", "key_heads", "ranks", "times"),
    [(4, 4, 2, 1), (4, 2, 2, 1), (4, 2, 4, 2), (4, 1, 4, 4), (12, 4, 6, 3), (16, 2, 4, 2)],
)
def test_key_heads_are_repeated_as_often_as_it_takes(
    heads: int, key_heads: int, ranks: int, times: int
) -> None:
    assert repeats(heads, key_heads, ranks) == times
    # A rank's successive heads of queries find their own key heads among the rank's.
    keys = torch.arange(key_heads).repeat_interleave(times).view(ranks, -1)
    own = keys.repeat_interleave(heads // (key_heads * times), 1)
    assert own.flatten().tolist() == [head // (heads // key_heads) for head in range(heads)]


@pytest.mark.parametrize(
    ("architecture", "heads", "message"),
    [("qwen3", 3, "heads"), ("granite", 4, "architecture")],
)
def test_a_model_that_ranks_cannot_share_is_refused_by_the_settings_name(
    tmp_path: Path, architecture: str, heads: int, message: str
) -> None:
    values = tiny_config("qwen3").to_dict() | {
        "model_type": architecture,
        "num_attention_heads": heads,
        "num_key_value_heads": 1,
    }
    tiny_model(AutoConfig.for_model(**values)).save_pretrained(tmp_path)
    ranks: Any = SimpleNamespace(rank=0, size=2, device=torch.device("cpu"))
    settings = EngineSettings(context_parallel=2)
    engine = Fsdp2Engine(EngineSetup(str(tmp_path), ranks, None, settings=settings))
    with pytest.raises(SpecError, match=message) as caught:
        engine.initialize()
    assert caught.value.field == "spec.trainer.engine.config.contextParallel"
