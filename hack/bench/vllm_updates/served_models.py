"""vLLM servers with the bench's plugin, and the random models whose weights they are given."""

from __future__ import annotations

import os
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM

from hack.bench.vllm_updates import fault_file
from rollcall_plugins.inference.vllm.engine import VllmEngine
from rollcall_plugins.inference.vllm.server import choices
from rollcall_plugins.inference.vllm.serving_engine import new_tokens
from rollcall_protocol.wire.partial_responses import Response
from rollcall_runtime.rollout.inference_engine import GenerationRequest, NewTokens, PauseMode
from rollcall_runtime.sync.weights.snapshots import Snapshotter

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence

    from torch import Tensor
    from transformers import PreTrainedModel

    from rollcall_runtime.sync.memory.device_buffers import DeviceAllocator
    from rollcall_runtime.sync.weights.snapshots import WeightSnapshot

FAULT = "fault.json"
"""The file of faults in a server's folder."""
ROOT = Path(__file__).parents[3]
POSITIONS = 512
_BUCKET = 64 << 20
_PLUGIN = "hack.bench.vllm_updates.faulty_plugin:register"


@dataclass(frozen=True, slots=True)
class ModelSize:
    """The widths of a random Qwen2."""

    hidden: int
    layers: int
    vocabulary: int


SMALL = ModelSize(hidden=128, layers=2, vocabulary=512)  # 0.7 million parameters
LARGE = ModelSize(hidden=640, layers=10, vocabulary=16_000)  # 57 million, 229 MB in float32


def random_model(size: ModelSize, *, seed: int, tied: bool) -> Qwen2ForCausalLM:
    """In float32; no token ends a response."""
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=size.vocabulary,
        hidden_size=size.hidden,
        intermediate_size=4 * size.hidden if size is LARGE else 2 * size.hidden,
        num_hidden_layers=size.layers,
        num_attention_heads=size.hidden // 32,
        num_key_value_heads=size.hidden // 64,
        max_position_embeddings=POSITIONS,
        tie_word_embeddings=tied,
        bos_token_id=None,
        eos_token_id=None,
    )
    return Qwen2ForCausalLM(config)  # it has no dropout


@torch.no_grad()
def from_directory(directory: Path) -> list[PreTrainedModel]:
    """The model there in float32, and one of weights beside its own; no token ends a response."""
    models: list[PreTrainedModel] = []
    for spread in (0.0, 0.05):
        model = AutoModelForCausalLM.from_pretrained(
            directory, dtype=torch.float32, trust_remote_code=False
        )
        model.config.eos_token_id = model.generation_config.eos_token_id = None
        torch.manual_seed(0)
        for parameter in model.parameters():
            parameter.add_(spread * parameter.std() * torch.randn_like(parameter))
        models.append(model)
    return models


class Served:
    """A vLLM that serves `models` in turn: version 1 has the weights of the second, and so on.

    Updates come from the host's memory, or from a device's once `receive_on` has one.
    """

    def __init__(self, engine: VllmEngine, models: Sequence[PreTrainedModel]) -> None:
        self.engine, self.models = engine, models
        self.version = 0
        self.receive_on: DeviceAllocator | None = None
        self._received: WeightSnapshot | None = None

    def model(self, version: int) -> PreTrainedModel:
        return self.models[version % len(self.models)]

    def weights(self, version: int) -> Iterator[tuple[str, Tensor]]:
        own = [(name, p.detach()) for name, p in self.model(version).named_parameters()]
        if self.receive_on is None:
            yield from own
            return
        taker = Snapshotter(bucket_bytes=_BUCKET, memory=self.receive_on)
        self._received = taker.take(own, timeout=0).finish()
        yield from self._received.tensors()

    async def update(self) -> None:
        """Serve the next version; `version` stays if that fails."""
        await self.prepare()
        await self.commit()

    async def prepare(self) -> None:
        """Have the next version ready to be served."""
        following = self.version + 1
        await self.engine.prepare(self.weights(following), version=following)

    async def commit(self) -> None:
        """Serve the next version, which is prepared."""
        following = self.version + 1
        await self.engine.update_weights(
            self.weights(following), version=following, running=PauseMode.KEEP, seconds=60
        )
        self.version = following

    async def respond(self, request: GenerationRequest) -> Response:
        """RuntimeError, or ValueError, as the engine raises them."""
        whole = Response()
        async for piece in self.engine.generate(request):
            whole = piece.after(whole)
        return whole


@asynccontextmanager
async def served(
    folder: Path,
    models: Sequence[PreTrainedModel],
    *,
    dtype: str = "float32",
    silent_seconds: float = 60.0,
) -> AsyncIterator[Served]:
    """A server in `folder`, which is made, with version 1."""
    folder.mkdir(parents=True)
    models[0].save_pretrained(folder / "model")
    os.environ |= {
        fault_file.VARIABLE: str(folder / FAULT),
        "PYTHONPATH": f"{ROOT}:{ROOT}/workloads:{_write_plugin(folder)}",
    }
    config = {"dtype": dtype, "silentSeconds": silent_seconds, "maxModelLen": POSITIONS}
    engine = VllmEngine(model=str(folder / "model"), config=config)
    try:
        await engine.start()
        found = Served(engine, models)
        await found.update()
        yield found
    finally:
        await engine.close()


@asynccontextmanager
async def loaded_from_disk(folder: Path, model: PreTrainedModel) -> AsyncIterator[Served]:
    """A server that reads the weights by itself, as version 0."""
    model.save_pretrained(folder / "model")
    engine = _FromDisk(model=str(folder / "model"), config={"dtype": "float32"})
    try:
        await engine.start()
        engine._version = 0
        yield Served(engine, [model])
    finally:
        await engine.close()


class _FromDisk(VllmEngine):
    async def generate(self, request: GenerationRequest) -> AsyncGenerator[NewTokens, None]:
        """The same requests; vLLM has no number for weights that it loaded by itself."""
        body = self._request_body(request)
        assert body is not None
        async for choice in choices(self._server.client, body):
            yield new_tokens(choice, 0)

    def _arguments(self, directory: Path) -> list[str]:
        given = super()._arguments(directory)
        return ["--load-format=auto" if a == "--load-format=dummy" else a for a in given]


def _write_plugin(folder: Path) -> Path:
    """A distribution that has nothing but the entry point of the bench's plugin."""
    path = folder / "plugin"
    info = path / "rollcall_bench_plugin-0.dist-info"
    info.mkdir(parents=True)
    metadata = "Metadata-Version: 2.1\nName: rollcall-bench-plugin\nVersion: 0\n"
    (info / "METADATA").write_text(metadata)
    (info / "entry_points.txt").write_text(f"[vllm.general_plugins]\nrollcall-bench = {_PLUGIN}\n")
    return path
