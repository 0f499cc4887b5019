"""The engine `vllm` with low-rank adapters and a real server: each version answers for itself."""

from __future__ import annotations

import asyncio
import copy
import json
from typing import TYPE_CHECKING, Any

import pytest
import torch

from rollcall_plugins.inference.vllm import adapter_engine
from rollcall_plugins.inference.vllm.adapter_engine import VllmAdapterEngine
from rollcall_protocol.adapter_config import AdapterConfig, exported_adapter
from rollcall_protocol.job_config import OptimizerConfig
from rollcall_protocol.sampling_config import SamplingConfig
from rollcall_protocol.train_settings import EngineSettings
from rollcall_protocol.wire.messages import Sample
from rollcall_runtime.rollout.inference_engine import GenerationRequest, PauseMode
from rollcall_runtime.train.engines.fsdp2 import Fsdp2Engine
from rollcall_runtime.train.policy_batch import policy_batch
from rollcall_runtime.train.process_group import TrainerProcessGroup
from rollcall_runtime.train.train_engine import EngineSetup
from rollcall_runtime.worker.errors import SpecError
from tests.plugins.inference.vllm.inside.conftest import make_model
from tests.plugins.inference.vllm.inside.served_engine import begun
from tests.unit.rollcall_runtime.rollout import engine_driver
from tests.unit.rollcall_runtime.rollout.engine_driver import EngineDriver, respond
from tests.unit.rollcall_runtime.train.batches import random_batch
from tests.unit.rollcall_runtime.train.reference import update_policy

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from torch import Tensor
    from transformers import PreTrainedModel

    from rollcall_protocol.wire.partial_responses import Response

SETTINGS = EngineSettings(
    lora_rank=3,
    lora_alpha=6.0,
    lora_targets="q_proj,v_proj,o_proj,down_proj",
    lora_export="adapter",
)
PROMPT = (5, 9, 11, 40, 7, 33)
GREEDY = SamplingConfig(max_tokens=24, temperature=1.0, top_k=1)
SHORT = SamplingConfig(max_tokens=12)
LONG = SamplingConfig(max_tokens=200)
UPDATES = 6


class Trainer:
    """Trains an adapter of the model in `folder`; `adapters` are what it exported, by version."""

    def __init__(self, folder: Path, ranks: TrainerProcessGroup) -> None:
        optimizer = OptimizerConfig("adamw", 0.03)
        model = str(folder)
        setup = EngineSetup(model=model, ranks=ranks, optimizer=optimizer, settings=SETTINGS)
        self.engine = Fsdp2Engine(setup)
        self.engine.initialize()
        self.adapters: dict[int, dict[str, Tensor]] = {}

    def train(self, version: int) -> dict[str, Tensor]:
        """What is exported after one more update of the policy."""
        update_policy(self.engine, random_batch(seed=version))
        exported = {name: tensor.clone() for name, tensor in self.engine.named_weights()}
        self.adapters[version] = exported
        return exported

    def logprobs(self, prompt: tuple[int, ...], response: Response) -> list[float]:
        """What the trainer says of a response with the weights that it has."""
        tokens, count = response.tokens, len(response.tokens)
        sample = Sample(tokens=tokens, logprobs=(-1.0,) * count, versions=(1,) * count, reward=0.0)
        batch = policy_batch([prompt], [[sample]], version=1)
        found = self.engine.forward(batch).logprobs
        assert found is not None
        return [float(value) for value in found[batch.mask]]

    def close(self) -> None:
        self.engine.close()


class Served:
    """A trainer, and the engine that serves what it exports."""

    def __init__(self, folder: Path, ranks: TrainerProcessGroup, **config: Any) -> None:
        self.base = make_model(0, tied=True)
        self.base.generation_config.eos_token_id = None
        self.base.config.eos_token_id = None
        self.base.save_pretrained(folder)
        self.trainer = Trainer(folder, ranks)
        adapter = exported_adapter(SETTINGS)
        assert adapter is not None
        values = {"dtype": "float32", **config}
        self.engine = VllmAdapterEngine(adapter, model=str(folder), config=values)
        self.driver = EngineDriver(self.engine)
        self.version = 0
        self.update()

    def update(self, running: PauseMode = PauseMode.KEEP) -> None:
        self.driver.run(self.updating(running))

    async def updating(self, running: PauseMode = PauseMode.KEEP) -> None:
        """Train the next version and serve it."""
        await self.prepare()
        await self.serve_prepared(running)

    async def prepare(self) -> None:
        """The next version. Serving it takes a moment then, which a long response outlasts."""
        following = self.version + 1
        weights = self.trainer.train(following)
        await self.engine.prepare(weights.items(), version=following)

    async def serve_prepared(
        self, running: PauseMode = PauseMode.KEEP, *, seconds: float = 60
    ) -> None:
        following = self.version + 1
        weights = self.trainer.adapters[following]
        await self.engine.update_weights(
            weights.items(), version=following, running=running, seconds=seconds
        )
        self.version = following

    def merged(self, version: int) -> PreTrainedModel:
        """The model itself with the adapter of `version` added to its weights."""
        model, adapter = copy.deepcopy(self.base), self.trainer.adapters[version]
        own = dict(model.named_parameters())
        scale = SETTINGS.lora_alpha / SETTINGS.lora_rank
        with torch.no_grad():
            for name, down in adapter.items():
                if ".lora_A." in name:
                    up = adapter[name.replace(".lora_A.", ".lora_B.")]
                    layer = name.removeprefix("base_model.model.").replace(".lora_A.", ".")
                    own[layer].add_(scale * (up @ down))
        return model

    def differences(self, response: Response, prompt: tuple[int, ...] = PROMPT) -> list[float]:
        """How far each token's log-probability is from that of its version's merged model."""
        found = [0.0] * len(response.tokens)
        for version in set(response.versions):
            own = plain_logprobs(self.merged(version), prompt, response)
            for at, logprob in enumerate(own):
                if response.versions[at] == version:
                    found[at] = abs(logprob - response.logprobs[at])
        return found

    def answer(self, sampling: SamplingConfig = SHORT) -> Response:
        return self.driver.run(respond(self.engine, GenerationRequest(PROMPT, sampling, seed=1)))

    def serves(self, version: int) -> bool:
        response = self.answer()
        return set(response.versions) == {version} and max(self.differences(response)) < 1e-3

    def adapters_in_vllm(self) -> set[str]:
        async def listed() -> set[str]:
            body = await self.engine._server.client.get("/v1/models", seconds=10)
            return {one["id"] for one in json.loads(body)["data"] if one["parent"]}

        return self.driver.run(listed())

    def close(self) -> None:
        self.driver.close()
        self.trainer.close()


@torch.no_grad()
def plain_logprobs(
    model: PreTrainedModel, prompt: tuple[int, ...], response: Response
) -> list[float]:
    found = model(torch.tensor([[*prompt, *response.tokens]])).logits[0].log_softmax(-1)
    first = len(prompt) - 1
    return [float(found[first + at, token]) for at, token in enumerate(response.tokens)]


def requests(count: int = 4) -> list[GenerationRequest]:
    return [GenerationRequest(PROMPT, LONG, seed=seed) for seed in range(count)]


@pytest.fixture(scope="module")
def ranks() -> Iterator[TrainerProcessGroup]:
    """A process has one at most."""
    group = TrainerProcessGroup()
    yield group
    group.close()


@pytest.fixture(scope="module")
def served(
    tmp_path_factory: pytest.TempPathFactory, ranks: TrainerProcessGroup
) -> Iterator[Served]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine_driver, "SECONDS", 200.0)
        served = Served(tmp_path_factory.mktemp("model"), ranks)
        yield served
        served.close()


def test_an_adapter_is_served_as_the_trainer_has_it(served: Served) -> None:
    response = served.answer()
    own = served.trainer.logprobs(PROMPT, response)
    assert response.logprobs == pytest.approx(own, abs=1e-3)
    assert max(served.differences(response)) < 1e-3
    base = plain_logprobs(served.base, PROMPT, response)
    assert response.logprobs != pytest.approx(base, abs=1e-2), "the adapter changes enough to tell"


def test_its_likeliest_tokens_are_those_of_the_merged_weights(served: Served) -> None:
    response, tokens, merged = served.answer(GREEDY), list(PROMPT), served.merged(served.version)
    with torch.no_grad():
        for _ in range(24):
            tokens.append(int(merged(torch.tensor([tokens])).logits[0, -1].argmax()))
    assert list(response.tokens) == tokens[len(PROMPT) :]


def test_after_an_update_the_new_version_answers_also_where_a_prefix_was_cached(
    served: Served,
) -> None:
    assert served.serves(served.version)
    served.update()
    assert served.serves(served.version)
    response = served.answer()
    former = plain_logprobs(served.merged(served.version - 1), PROMPT, response)
    assert response.logprobs != pytest.approx(former, abs=1e-2), "versions differ enough to tell"


def test_responses_go_on_over_updates_and_each_token_is_of_the_version_that_it_says(
    served: Served,
) -> None:
    async def under_load() -> list[Response]:
        await served.prepare()
        running = await begun(served.engine, requests())
        await served.serve_prepared()
        for _ in range(UPDATES - 1):
            await served.updating()
        return list(await asyncio.gather(*running))

    first = served.version
    responses = served.driver.run(under_load())
    assert served.version == first + UPDATES
    for response in responses:
        assert response.finished
        assert len(response.tokens) == 200
        assert list(response.versions) == sorted(response.versions)
        assert max(served.differences(response)) < 1e-3
    assert any(len(set(response.versions)) > 2 for response in responses)


def test_an_update_that_aborts_ends_responses_unfinished_and_they_go_on(served: Served) -> None:
    async def aborted() -> tuple[Response, Response]:
        (request,) = requests(1)
        await served.prepare()
        (running,) = await begun(served.engine, [request])
        await served.serve_prepared(PauseMode.ABORT)
        cut = await running
        request = GenerationRequest(request.prompt, LONG, request.seed, begun=cut)
        return cut, await respond(served.engine, request)

    cut, whole = served.driver.run(aborted())
    assert not cut.finished
    assert 0 < len(cut.tokens) < 200
    assert set(cut.versions) == {served.version - 1}
    assert whole.finished
    assert whole.tokens[: len(cut.tokens)] == cut.tokens
    assert set(whole.versions[len(cut.tokens) :]) == {served.version}
    assert max(served.differences(whole)) < 1e-3


def test_an_update_that_waits_lets_responses_end_first_and_holds_new_ones(served: Served) -> None:
    async def waited() -> tuple[list[Response], Response]:
        await served.prepare()
        running = await begun(served.engine, requests())
        updating = asyncio.create_task(served.serve_prepared(PauseMode.WAIT))
        while served.engine._open.is_set():  # it prepares beside serving
            await asyncio.sleep(0.01)
        late = await respond(served.engine, GenerationRequest(PROMPT, SHORT, seed=9))
        await updating
        return list(await asyncio.gather(*running)), late

    responses, late = served.driver.run(waited())
    for response in responses:
        assert response.finished
        assert set(response.versions) == {served.version - 1}
        assert max(served.differences(response)) < 1e-3
    assert set(late.versions) == {served.version}
    assert max(served.differences(late)) < 1e-3


def test_an_update_that_waits_too_long_leaves_the_old_version(served: Served) -> None:
    async def late() -> list[Response]:
        await served.prepare()
        running = await begun(served.engine, requests())
        with pytest.raises(TimeoutError, match=r"did not end within 0\.02 s"):
            await served.serve_prepared(PauseMode.WAIT, seconds=0.02)
        return list(await asyncio.gather(*running))

    former = served.version
    assert all(response.finished for response in served.driver.run(late()))
    assert served.serves(former)
    served.update()
    assert served.serves(former + 1), "and the next update is made"


def test_an_adapter_that_vllm_refuses_leaves_the_old_one(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = served.answer(GREEDY)
    with monkeypatch.context() as patch:
        patch.setattr(adapter_engine, "write_adapter", _damaged)
        with pytest.raises(RuntimeError, match="/v1/load_lora_adapter"):
            served.update()
    assert not served.engine.failure
    assert served.answer(GREEDY) == before
    served.update()
    assert served.serves(served.version), "and the next update is made"


def _damaged(folder: Path, *_: object, **__: object) -> None:
    """In the place of `write_adapter`."""
    (folder / "adapter_model.safetensors").write_bytes(b"x" * 100)


def test_replaced_adapters_are_unloaded_and_their_files_removed(served: Served) -> None:
    for _ in range(3):
        served.update()
        served.answer()
    assert served.engine._serving is not None
    assert served.adapters_in_vllm() == {served.engine._serving.name}
    folders = [path.name for path in served.engine._folder.iterdir() if path.is_dir()]
    assert folders == [served.engine._serving.name]


def test_layers_that_vllm_gives_no_adapters_are_refused_at_the_start(tmp_path: Path) -> None:
    make_model(0, tied=False).save_pretrained(tmp_path)
    adapter = AdapterConfig(rank=2, alpha=4.0, targets=("lm_head",))
    engine = VllmAdapterEngine(adapter, model=str(tmp_path), config={"dtype": "float32"})
    with pytest.raises(SpecError, match=r"config\.loraTargets: .* received \['lm_head'"):
        EngineDriver(engine)


def test_with_tensor_parallelism_a_load_that_fails_takes_vllm_out_of_service(
    tmp_path: Path, ranks: TrainerProcessGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_driver, "SECONDS", 300.0)
    served = Served(tmp_path / "model", ranks, tensorParallelSize=2)
    try:
        assert served.serves(1)
        served.update()
        assert served.serves(2)
        with monkeypatch.context() as patch:
            patch.setattr(adapter_engine, "write_adapter", _damaged)
            with pytest.raises(RuntimeError, match="/v1/load_lora_adapter"):
                served.update()
        assert served.engine.failure.startswith("vLLM could not load an adapter")
        with pytest.raises(RuntimeError, match="could not load an adapter"):
            served.answer()
    finally:
        served.close()
