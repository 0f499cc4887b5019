"""What the tests of the suite hold: an engine on all ranks of a mesh, and what it can do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from rollcall_protocol.settings_reader import camel_case
from rollcall_protocol.train_settings import EngineSettings
from tests.process.engines.limits import limits_of
from tests.process.engines.meshes import Mesh
from tests.process.engines.rank_processes import RankError, RankProcesses
from tests.process.engines.reference import LEARNING_RATE
from tests.process.engines.tiny_models import Architecture
from tests.process.engines.weight_transfer import receive_weights

if TYPE_CHECKING:
    from tests.process.engines.suite_batches import Rows

CONFIG = "spec.trainer.engine.config"

# Qwen3 has one matrix for input and output tokens, and norms of queries and keys; this Llama has
# two matrices, and no such norms. `make test` runs the first alone.
both_models = pytest.mark.parametrize(
    "kind", ["qwen3", pytest.param("llama", marks=pytest.mark.slow)]
)

# With these AdamW's step from w is -GRADIENT_RATE * g / (|g| + GRADIENT_RATE), so that the
# gradient g of every weight can be computed from the weights before and after a step. It works for
# any engine, however that shards or names its gradients.
GRADIENT_RATE = 0.1
SHOWS_GRADIENTS: Mapping[str, Any] = {
    "beta1": 0.0,
    "beta2": 0.0,
    "epsilon": GRADIENT_RATE,
    "weight_decay": 0.0,
    "max_gradient_norm": 1e9,
}
# An error of the weights is multiplied by (1 + |g| / rate)^2 / rate. So the gradients of one step,
# which are up to 2, are read with a higher rate; five such steps would change a model too much.
ONE_STEP_RATE = 1.0
SHOWS_ONE_GRADIENT: Mapping[str, Any] = {**SHOWS_GRADIENTS, "epsilon": ONE_STEP_RATE}


@dataclass(frozen=True, slots=True)
class Facts:
    """What an engine says of itself."""

    settings: frozenset[str]
    heads: frozenset[str]
    devices: frozenset[str]
    device: str

    def lacks(self, *, settings: Mapping[str, object], head: str) -> str:
        """Why it cannot do this, empty if it can."""
        defaults = asdict(EngineSettings())
        unknown = [
            camel_case(name)
            for name, value in settings.items()
            if value != defaults[name] and name not in self.settings
        ]
        if unknown:
            return f"it has no setting {', '.join(unknown)}"
        return "" if head in self.heads else f"it has no head {head}"


@dataclass(slots=True)
class EngineOnRanks:
    """An engine on the ranks of `mesh`. Methods return what all ranks agree on."""

    name: str
    mesh: Mesh
    ranks: RankProcesses

    def facts(self) -> Facts:
        """Fails the test if the engine cannot be used here, which a skip would hide."""
        (found, *_) = self.ranks.do("describe")
        if found["reason"]:
            pytest.fail(f"{self.name} cannot be used here: {found['reason']}", pytrace=False)
        if found["device"] not in found["devices"]:
            needed = " or ".join(sorted(found["devices"]))
            problem = f"{self.name} does not run on {found['device']}: it needs {needed}"
            pytest.fail(f"{problem}, or --cpu-stand-ins", pytrace=False)
        return Facts(
            settings=frozenset(found["settings"]),
            heads=frozenset(found["heads"]),
            devices=frozenset(found["devices"]),
            device=found["device"],
        )

    def open(
        self,
        model: Path,
        *,
        head: str = "language-model",
        learning_rate: float | None = LEARNING_RATE,
        temperature: float = 1.0,
        name: str = "main",
        **settings: object,
    ) -> None:
        """Make the engine; skips the test if it lacks a setting, the mesh or the head."""
        wanted = {**self.mesh.settings, **settings}
        reason = self.facts().lacks(settings=wanted, head=head)
        if reason:
            pytest.skip(f"{self.name}: {reason}")
        try:
            self.open_anyway(
                model,
                head=head,
                learning_rate=learning_rate,
                temperature=temperature,
                name=name,
                **settings,
            )
        except RankError as error:
            self._skip_if_refused(error, wanted)
            raise

    def _skip_if_refused(self, error: RankError, wanted: Mapping[str, object]) -> None:
        """Skip the test if the engine refuses one of these values, and its limits, if any, do."""
        limits = limits_of(self.name)
        for name, value in wanted.items():
            refused = error.type == "SpecError" and error.field == f"{CONFIG}.{camel_case(name)}"
            known = limits is None or (name, value) in limits.refuses
            if refused and known:
                pytest.skip(f"{self.name} refuses {camel_case(name)} {value}: {error.message}")

    def open_anyway(self, model: Path, **arguments: Any) -> None:
        """Make the engine, whatever it lacks."""
        settings = {**self.mesh.settings}
        for key in [key for key in arguments if key in EngineSettings.__slots__]:
            settings[key] = arguments.pop(key)
        self.ranks.do("open", model=str(model), settings=settings, **arguments)

    def close(self) -> None:
        """Close all engines that are open."""
        self.ranks.do("close")

    def forward_backward(
        self, rows: Rows, *, loss: str = "token mean", name: str = "main"
    ) -> dict[str, Any]:
        """BatchResult's fields."""
        replies = self.ranks.do("forward_backward", rows=asdict(rows), loss=loss, name=name)
        return dict(agreed(replies))

    def optimizer_step(self, *, name: str = "main") -> dict[str, Any]:
        """OptimizerStep's fields."""
        return dict(agreed(self.ranks.do("optimizer_step", name=name)))

    def train(self, rows: Rows, *, loss: str = "token mean") -> dict[str, Any]:
        """One step; the fields of both results."""
        return self.forward_backward(rows, loss=loss) | self.optimizer_step()

    def forward(self, rows: Rows, *, name: str = "main") -> dict[str, Tensor]:
        """What the head gives for all rows, by ModelOutput's names; 0 where the mask is false."""
        files = self.ranks.do("forward", rows=asdict(rows), name=name)
        shares: dict[int, dict[str, Tensor]] = {}
        for place, file in zip(self.places(name=name), files, strict=True):
            found = load_file(file)
            # Ranks that compute the same rows give the same.
            assert_equal_bits(found, shares.setdefault(place["data_parallel_rank"], found))
        return {
            key: joined([shares[rank][key] for rank in sorted(shares)], rows.whole().mask)
            for key in shares[0]
        }

    def places(self, *, name: str = "main") -> list[dict[str, Any]]:
        """Of each rank: data-parallel rank and size, and whether it holds outputs."""
        found: list[dict[str, Any]] = self.ranks.do("place", name=name)
        return found

    def weight_info(self, *, name: str = "main") -> list[tuple[str, str, tuple[int, ...]]]:
        """Name, dtype and shape of each exported tensor."""
        found = agreed(self.ranks.do("weight_info", name=name))
        return [(label, dtype, tuple(shape)) for label, dtype, shape in found]

    def weights(self, *, name: str = "main") -> dict[str, Tensor]:
        """Whole tensors in the engine's order, bit-equal on all ranks."""
        replies = self.ranks.do("weights", name=name)
        every = [load_file(reply["file"]) for reply in replies]
        for other in every[1:]:
            assert_equal_bits(other, every[0])
        return {label: every[0][label] for label in replies[0]["order"]}

    def weight_shards(self) -> list[list[tuple[str, tuple[int, ...], int, Tensor]]]:
        """Of each rank: name, whole shape, first row and tensor of what it sends."""
        found = []
        for reply in self.ranks.do("weight_shards"):
            tensors = load_file(reply["file"])
            found.append(
                [
                    (label, tuple(shape), start, tensors[str(number)])
                    for number, (label, shape, start) in enumerate(reply["places"])
                ]
            )
        return found

    def gradients(self, rows: Rows, *, loss: str = "token mean") -> dict[str, Tensor]:
        """Make a step and return the gradient that it used; the engine needs SHOWS_GRADIENTS."""
        self.forward_backward(rows, loss=loss)
        return self.gradients_there_are()

    def gradients_there_are(self, *, rate: float = GRADIENT_RATE) -> dict[str, Tensor]:
        """The same, of what was computed already. `rate`: the learning rate, and `epsilon`."""
        before = self.weights()
        self.optimizer_step()
        return gradients_of_step(before, self.weights(), rate=rate)

    def received_weights(
        self, transport: str, config: Mapping[str, Any], *, sharded: bool
    ) -> dict[str, Tensor]:
        """What a rollout gets over this sync engine."""
        opened = self.ranks.do("open_sender", transport=transport, config=config, sharded=sharded)
        senders = [reply for reply in opened if reply is not None]

        def publish(**arguments: Any) -> None:
            self.ranks.begin("publish", **arguments)

        received = receive_weights(transport, config, senders, publish=publish)
        self.ranks.finish()
        return received


Place = Callable[[str, Mesh], EngineOnRanks]
"""Gives an engine on the ranks of a mesh, for tests that need several."""

Model = Callable[[Architecture], Path]
"""Gives the directory of a tiny model."""


def gradients_of_step(
    before: Mapping[str, Tensor], after: Mapping[str, Tensor], *, rate: float
) -> dict[str, Tensor]:
    """The gradients that led from one to the other under SHOWS_GRADIENTS, at `rate`."""
    found = {}
    for name, weight in before.items():
        step = (weight.double() - after[name].double()) / rate
        found[name] = (rate * step / (1 - step.abs())).float()
    return found


def agreed(values: Sequence[Any]) -> Any:
    """What all ranks returned, which must be the same (NaN equals itself)."""
    assert len({repr(value) for value in values}) == 1, f"ranks disagree: {values}"
    return values[0]


def joined(shares: Sequence[Tensor], mask: Tensor) -> Tensor:
    """The rows of all ranks, each of which has padded its own; 0 where `mask` is false."""
    if shares[0].ndim == 1:
        return torch.cat(list(shares))
    whole = torch.zeros(mask.shape)
    first = 0
    for share in shares:
        whole[first : first + share.shape[0], : share.shape[1]] = share
        first += share.shape[0]
    return whole.masked_fill(~mask, 0)


def assert_equal_bits(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> None:
    """The same names, dtypes, shapes and bits."""
    assert one.keys() == other.keys()
    different = [name for name in one if not equal_bits(one[name], other[name])]
    assert different == []


def equal_bits(one: Tensor, other: Tensor) -> bool:
    """NaN equals itself, and 0 is not -0."""
    return (
        one.dtype == other.dtype
        and one.shape == other.shape
        and torch.equal(
            one.contiguous().view(torch.uint8).flatten(),
            other.contiguous().view(torch.uint8).flatten(),
        )
    )


def refusal(call: Callable[[], object]) -> RankError:
    """The error that every rank raises."""
    with pytest.raises(RankError) as caught:
        call()
    return caught.value
