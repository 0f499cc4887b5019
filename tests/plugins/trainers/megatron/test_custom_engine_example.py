"""The example of a third party's engine is found by its entry point and passes the suite."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import GraniteConfig, GraniteForCausalLM

from tests.process.engines import meshes
from tests.process.engines.engine_on_ranks import EngineOnRanks, refusal
from tests.process.engines.rank_processes import RankPool
from tests.process.engines.reference import Reference
from tests.process.engines.suite_batches import Rows
from tests.process.engines.suite_losses import LOSSES

ROOT = Path(__file__).parents[4]
EXAMPLE = ROOT / "examples" / "custom-engine"
ENGINE = "example.granite-megatron"

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("engine-megatron")]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The example in a folder of its own, which this process and its ranks import from."""
    target = tmp_path_factory.mktemp("installed")
    command = (sys.executable, "-m", "uv", "pip", "install", "--no-deps", "--no-build-isolation")
    subprocess.run([*command, "--offline", "--target", target, EXAMPLE], check=True, timeout=60)
    sys.path.insert(0, str(target))
    yield target
    sys.path.remove(str(target))


@pytest.fixture(scope="module")
def granite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Granite, all of whose factors count."""
    torch.manual_seed(5)
    config = GraniteConfig(
        vocab_size=67,  # odd, so that tensor-parallel ranks pad it
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        embedding_multiplier=3.0,
        attention_multiplier=0.5,
        residual_multiplier=0.4,
        logits_scaling=2.0,
    )
    directory = tmp_path_factory.mktemp("granite")
    GraniteForCausalLM(config).save_pretrained(directory)
    return directory


def test_the_patched_model_trains_as_transformers_does(
    installed: Path, granite: Path, rank_pool: RankPool
) -> None:
    reference = Reference(granite)
    with rank_pool.ranks(ENGINE, 2, "megatron") as ranks:
        engine = EngineOnRanks(ENGINE, meshes.TP2, ranks)
        engine.open(granite)
        for step in range(3):
            want = reference.forward_backward(Rows(step).whole(), LOSSES["token mean"])
            taken = reference.optimizer_step()
            reference.zero_grad()
            got = engine.train(Rows(step))
            assert got["loss"] == pytest.approx(want.loss, abs=1e-5)
            assert got["gradient_norm"] == pytest.approx(taken.gradient_norm, rel=1e-4)
        weights = engine.weights()
    assert weights.keys() == reference.weights.keys()


def test_the_built_in_engine_says_that_it_does_not_know_the_architecture(
    granite: Path, rank_pool: RankPool
) -> None:
    with rank_pool.ranks("megatron", 2, "megatron") as ranks:
        engine = EngineOnRanks("megatron", meshes.TP2, ranks)
        error = refusal(lambda: engine.open(granite))
    assert error.field == "spec.model.path"
    assert "granite" in error.message


def test_the_suite_runs_on_the_example(installed: Path) -> None:
    command = (sys.executable, "-m", "pytest", "tests/process/engines/test_training.py", "-q", "-x")
    options = ("--engine", ENGINE, "--cpu-stand-ins", "megatron", "-k", "TP2 and not xTP2")
    path = os.pathsep.join([str(installed), os.environ.get("PYTHONPATH", "")])
    run = subprocess.run(
        [*command, *options],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert run.returncode == 0, run.stdout
    assert " passed" in run.stdout
