"""What a trainer may publish, and what the file then holds."""

import mmap
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from rollcall.errors import RollcallError
from rollcall.weights import WeightsWriter

NAMED = {
    "embed.weight": torch.arange(6.0).reshape(2, 3),
    "head.weight": torch.ones(5, dtype=torch.bfloat16),
}


@pytest.fixture
def writer() -> Iterator[WeightsWriter]:
    made = WeightsWriter()
    yield made
    made.close()


def held(writer: WeightsWriter, named: Any) -> dict[str, torch.Tensor]:
    """What the file holds after `named` were written."""
    specs, nbytes = writer.write(named)
    with mmap.mmap(writer.descriptor, nbytes, prot=mmap.PROT_READ) as mapping:
        data = mapping[:]
    return {
        spec.name: torch.frombuffer(
            bytearray(data[spec.offset : spec.offset + spec.nbytes]), dtype=torch.uint8
        )
        .view(getattr(torch, spec.dtype))
        .reshape(spec.shape)
        if spec.nbytes
        else torch.empty(spec.shape, dtype=getattr(torch, spec.dtype))
        for spec in specs
    }


def test_the_file_holds_the_tensors(writer: WeightsWriter) -> None:
    for scale in (1, 2, 3):
        wanted = {name: tensor * scale for name, tensor in NAMED.items()}
        found = held(writer, wanted)
        assert list(found) == list(wanted)
        assert all(torch.equal(found[name], wanted[name]) for name in wanted)
        assert all(found[name].dtype == wanted[name].dtype for name in wanted)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(12.0).reshape(3, 4).t(),
        torch.arange(12.0)[::3],
        torch.tensor(2.5),
        torch.empty(0, 4),
        torch.arange(4.0).to(torch.float8_e4m3fn),
        torch.nn.Parameter(torch.ones(3)),
        torch.arange(3),
    ],
    ids=["transposed", "strided", "a number", "zero-sized", "fp8", "parameter", "integers"],
)
def test_any_values_are_held_as_they_are(writer: WeightsWriter, tensor: torch.Tensor) -> None:
    for _ in range(2):  # the first time the file grows, then it is mapped
        found = held(writer, [("before", torch.ones(3)), ("it", tensor)])["it"]
        assert found.dtype == tensor.dtype
        assert torch.equal(found.float(), tensor.detach().float())


def test_float32_goes_as_asked(writer: WeightsWriter) -> None:
    writer.write_float32_as("bfloat16")
    found = held(writer, NAMED)
    assert found["embed.weight"].dtype == torch.bfloat16
    assert torch.equal(found["embed.weight"].float(), NAMED["embed.weight"])


def test_tensors_are_taken_one_by_one(writer: WeightsWriter) -> None:
    alive: list[str] = []

    def gathered() -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in NAMED.items():
            alive.append(name)
            yield name, tensor
            alive.remove(name)
            assert not alive

    assert list(held(writer, gathered())) == list(NAMED)


def test_parts_of_a_sharded_tensor_are_gathered(writer: WeightsWriter) -> None:
    class Sharded:
        def full_tensor(self) -> torch.Tensor:
            return torch.arange(3.0)

    found = held(writer, [("it", Sharded())])
    assert torch.equal(found["it"], torch.arange(3.0))


CHANGES: dict[str, tuple[Any, str]] = {
    "one is missing": (
        {"embed.weight": NAMED["embed.weight"]},
        "1 tensors came, and 2 the first time; the first that is missing is 'head.weight'",
    ),
    "one more": ({**NAMED, "new": torch.ones(1)}, "'new' was not there the first time"),
    "another name": (
        {"embed": NAMED["embed.weight"], "head.weight": NAMED["head.weight"]},
        "'embed' [2, 3] of float32 came where 'embed.weight' [2, 3] of float32",
    ),
    "another shape": (
        {**NAMED, "head.weight": torch.ones(6, dtype=torch.bfloat16)},
        "'head.weight' [6] of bfloat16 came where 'head.weight' [5] of bfloat16",
    ),
    "another dtype": (
        {**NAMED, "head.weight": torch.ones(5)},
        "'head.weight' [5] of float32 came where 'head.weight' [5] of bfloat16",
    ),
    "another order": (
        dict(reversed(NAMED.items())),
        "'head.weight' [5] of bfloat16 came where 'embed.weight' [2, 3] of float32",
    ),
}


@pytest.mark.parametrize(("named", "message"), CHANGES.values(), ids=CHANGES)
def test_what_changes_between_publications_is_refused(
    writer: WeightsWriter, named: Any, message: str
) -> None:
    held(writer, NAMED)
    with pytest.raises(RollcallError) as refused:
        writer.write(named)
    assert message in str(refused.value)
    assert list(held(writer, NAMED)) == list(NAMED), "the next publication is as if nothing was"


BAD: dict[str, tuple[Any, str]] = {
    "nothing": ({}, "no tensors were given"),
    "twice": ([("a", torch.ones(1)), ("a", torch.ones(1))], "'a' came twice"),
    "no pair": ([torch.ones(1)], "is no name with a tensor"),
    "no tensor": ({"a": 1.0}, "'a' with float is no name with a tensor"),
    "no name": ([(1, torch.ones(1))], "1 with Tensor is no name with a tensor"),
    "meta": ({"a": torch.ones(2, device="meta")}, "'a' is on the meta device"),
    "sparse": ({"a": torch.eye(2).to_sparse()}, "'a' has the layout torch.sparse_coo"),
}


@pytest.mark.parametrize(("named", "message"), BAD.values(), ids=BAD)
def test_what_is_no_weight_is_refused(writer: WeightsWriter, named: Any, message: str) -> None:
    with pytest.raises(RollcallError, match="publish: ") as refused:
        writer.write(named)
    assert message in str(refused.value)
    assert list(held(writer, NAMED)) == list(NAMED), "it was not taken for the first publication"


def test_what_the_iterable_raises_is_raised(writer: WeightsWriter) -> None:
    def broken() -> Iterator[tuple[str, torch.Tensor]]:
        yield "a", torch.ones(1)
        raise KeyError("b")

    with pytest.raises(KeyError, match="b"):
        writer.write(broken())
    assert list(held(writer, NAMED)) == list(NAMED)
