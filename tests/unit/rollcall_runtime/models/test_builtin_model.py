"""The built-in decoder: by name, or from a directory that a former run wrote."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from rollcall_runtime.models.builtin_model import builtin_source
from rollcall_runtime.models.export import export_model
from rollcall_runtime.models.open_model import open_model
from rollcall_runtime.models.tiny_decoder import TinyConfig, TinyDecoder
from rollcall_runtime.worker.errors import SpecError

SMALL = TinyConfig(vocabulary=7, positions=5, width=8, heads=2, layers=1)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A model written by a former run."""
    source = replace(builtin_source("builtin:reverse-tiny"), config=SMALL)
    weights = TinyDecoder.seeded(SMALL, seed=9).state_dict()
    export_model(source, weights.items(), tmp_path / "model")
    return tmp_path / "model"


def test_the_built_in_model_has_the_task_s_vocabulary_and_room() -> None:
    source = open_model("builtin:reverse-tiny")
    assert (source.vocabulary, source.positions, source.named_eos) == (13, 13, frozenset({2}))
    wanted = TinyDecoder.seeded(TinyConfig(), seed=4).state_dict()
    built = source.build(seed=4).state_dict()
    assert wanted.keys() == built.keys()
    assert all(torch.equal(built[name], tensor) for name, tensor in wanted.items())


def test_the_large_built_in_model_is_64_mib_and_does_the_same_task() -> None:
    small, large = open_model("builtin:reverse-tiny"), open_model("builtin:reverse-64m")
    model = large.build()
    nbytes = sum(weight.nbytes for weight in model.state_dict().values())
    assert 64 <= nbytes / 2**20 < 64.1
    for name in ("vocabulary", "positions", "named_eos"):
        assert getattr(large, name) == getattr(small, name)
    assert model(torch.zeros(1, 13, dtype=torch.long)).isfinite().all()


def test_a_directory_gives_back_what_was_written(directory: Path) -> None:
    source = open_model(str(directory))
    assert (source.vocabulary, source.positions, source.named_eos) == (7, 5, frozenset({2}))
    written = TinyDecoder.seeded(SMALL, seed=9).state_dict()
    read = source.build(seed=1).state_dict()  # the seed has no say where there are weights
    assert all(torch.equal(read[name], tensor) for name, tensor in written.items())


def test_a_value_head_begins_with_zeros_on_the_same_layers() -> None:
    model = open_model("builtin:reverse-tiny").build(head="value", seed=4)
    tokens = torch.zeros(2, 5, dtype=torch.long)
    assert torch.equal(model(tokens), torch.zeros(2, 5, 1))
    wanted = TinyDecoder.seeded(TinyConfig(), seed=4).state_dict()
    built = model.state_dict()
    assert built.keys() ^ wanted.keys() == {"score.weight", "head.weight"}
    assert all(torch.equal(built[name], wanted[name]) for name in built.keys() & wanted.keys())


def test_a_score_head_is_seeded() -> None:
    source = open_model("builtin:reverse-tiny")
    one, same, other = (
        source.build(head="sequence-classification", seed=seed).get_parameter("score.weight")
        for seed in (1, 1, 2)
    )
    assert one.shape == (1, 64)
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_an_unknown_name_lists_those_that_there_are() -> None:
    with pytest.raises(SpecError) as caught:
        open_model("builtin:reverse")
    assert str(caught.value) == (
        "spec.model.path: unknown 'builtin:reverse'; built in: builtin:reverse-64m, "
        "builtin:reverse-tiny"
    )


@pytest.mark.parametrize(
    ("change", "message"), [({"widht": 8}, "widht"), ({"heads": 7}, "heads must divide width")]
)
def test_sizes_that_cannot_be_are_refused(
    directory: Path, change: dict[str, int], message: str
) -> None:
    edit(directory, change)
    with pytest.raises(SpecError, match=f"^spec.model.path: .*config.json: .*{message}"):
        open_model(str(directory))


def test_weights_of_another_shape_are_refused(directory: Path) -> None:
    edit(directory, {"width": 16})
    with pytest.raises(SpecError, match=r"^spec.model.path: .* has the shape \[.*, but by the"):
        open_model(str(directory)).build()


def edit(directory: Path, change: dict[str, int]) -> None:
    file = directory / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
