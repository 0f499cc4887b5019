"""An inference engine with weights of a test's own, and the model to compare its tokens with."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from rollcall_protocol.sampling_config import SamplingConfig
from rollcall_protocol.wire.partial_responses import Response
from rollcall_runtime.models.open_model import open_model
from rollcall_runtime.rollout.inference_engine import InferenceEngine, inference_engines
from rollcall_runtime.tasks.reverse import prompt
from tests.process.engines.tiny_models import LETTERS, write_tiny_model
from tests.unit.rollcall_runtime.rollout.engine_driver import EngineDriver

PROMPTS = [prompt(index, seed=0) for index in range(4)]
RAGGED = [(0, 3, 1), (0, 3, 4, 5, 6, 7, 1), (5,), (0, 3, 4, 5, 1)]
SIX = SamplingConfig(max_tokens=6)

Policy = Callable[[Tensor], Tensor]  # tokens [rows, tokens] to logits


@dataclass(frozen=True, slots=True)
class ServedCase:
    """An engine by its name in the registry, the model that it serves, and its settings.

    Without a model it serves a directory of Hugging Face's with the vocabulary of the task
    `reverse`.
    """

    engine: str
    model: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)


_BOUND = {"maxTokens": 6}
TINY = ServedCase("tiny", "builtin:reverse-tiny", _BOUND)
TRANSFORMERS = ServedCase("transformers", config=_BOUND)


class Served:
    """An engine, and other weights for its model."""

    def __init__(self, case: ServedCase, directory: Path) -> None:
        self._case = case
        self.path = case.model or str(directory)
        self.engine = EngineDriver(self.made())
        self._source = open_model(self.path)

    def made(self) -> InferenceEngine:
        """Such an engine, not started."""
        kind = inference_engines.get(self._case.engine)
        return kind(model=self.path, config=self._case.config)

    def state(self, seed: int, spread: float = 0.15) -> dict[str, Tensor]:
        """Weights far from uniform, so that a wrong weight or position would show."""
        generator = torch.Generator().manual_seed(seed)
        reader = self._source.weights()
        return {
            name: torch.randn(shape, generator=generator) * spread
            + (1.0 if "norm" in name else 0.0)
            for name, shape in reader.shapes.items()
        }

    def policy(self, seed: int) -> Policy:
        """The model with these weights, which computes all positions at once, without a cache."""
        model = self._source.build().requires_grad_(requires_grad=False)
        for name, parameter in model.named_parameters():
            parameter.copy_(self.state(seed)[name])

        def logits(tokens: Tensor) -> Tensor:
            output = model(tokens)
            found: Tensor = getattr(output, "logits", output)
            return found

        return logits


def fixtures_of(*cases: ServedCase) -> tuple[Any, Any, Any]:
    """The fixtures `directory` (a model of Hugging Face's), `served`, and `engine`, its driver."""

    @pytest.fixture(scope="module")
    def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
        folder = tmp_path_factory.mktemp("model")
        return write_tiny_model(folder / "qwen3", characters=LETTERS)

    @pytest.fixture(params=cases, ids=lambda case: case.engine)
    def served(request: pytest.FixtureRequest, directory: Path) -> Iterator[Served]:
        served = Served(request.param, directory)
        served.engine.load_weights(served.state(0).items(), version=0)
        yield served
        served.engine.close()

    @pytest.fixture
    def engine(served: Served) -> EngineDriver:
        return served.engine

    return directory, served, engine


def sample(
    engine: EngineDriver,
    prompts: Sequence[Sequence[int]] = PROMPTS,
    *,
    seed: int = 1,
    begun: Sequence[Sequence[Response]] | None = None,
) -> list[list[Response]]:
    """Three responses of at most six tokens to each prompt."""
    return engine.sample(
        prompts, group_size=3, seed=seed, begun=begun, sampling=[SIX] * len(prompts)
    )


def recomputed(
    prompt: Sequence[int], generation: Response, models: dict[int, Policy]
) -> list[float]:
    """The log-probabilities of a response, token by token, by the versions that it says."""
    tokens = [*prompt, *generation.tokens]
    logprobs = {
        version: model(torch.tensor([tokens[:-1]])).log_softmax(-1)[0]
        for version, model in models.items()
    }
    return [
        float(logprobs[version][len(prompt) - 1 + at, token])
        for at, (token, version) in enumerate(
            zip(generation.tokens, generation.versions, strict=True)
        )
    ]
