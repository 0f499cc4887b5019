"""How the engine `sglang` starts SGLang. `test_processes.py` runs it."""

import json
import tempfile
from pathlib import Path

import pytest

from rollcall_plugins.inference.sglang.engine import SglangEngine
from rollcall_protocol.sampling_config import SamplingConfig
from rollcall_runtime.rollout.inference_engine import GenerationRequest
from rollcall_runtime.worker.errors import SpecError
from tests.plugins.inference.sglang.double.contract import CONTRACT, check_arguments
from tests.process.engines.tiny_models import write_tiny_model


@pytest.fixture(autouse=True)
def folders_of_engines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Go with the test's own."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def test_sglang_is_started_as_the_pool_says(tmp_path: Path) -> None:
    model = str(write_tiny_model(tmp_path / "model"))
    config = {
        "dtype": "bfloat16",
        "tensorParallelSize": 2,
        "maxModelLen": 100,
        "memFractionStatic": "0.5",
        "arguments": "--max-running-requests=8 --disable-cuda-graph",
    }
    engine = SglangEngine(model=model, config=config)
    command = engine._server.command
    given = check_arguments(command[command.index("--config") :])
    wanted = {
        "--model-path": model,
        "--host": "127.0.0.1",
        "--load-format": "dummy",
        "--dtype": "bfloat16",
        "--tp-size": "2",
        "--context-length": "100",
        "--mem-fraction-static": "0.5",
        "--max-running-requests": "8",
        "--disable-cuda-graph": "",
    }
    assert wanted.items() <= given.items()
    assert "--skip-tokenizer-init" not in given, "the model has one"
    assert Path(given["--config"]).stat().st_mode & 0o077 == 0, "the key is the agent's"


def test_variables_of_sglang_are_those_that_it_knows(tmp_path: Path) -> None:
    engine = SglangEngine(model=str(write_tiny_model(tmp_path / "model")))
    own = {name for name in engine._variables() if name.startswith("SGLANG_")}
    assert own == set(CONTRACT["variables"])


def test_it_serves_no_builtin_model() -> None:
    with pytest.raises(SpecError, match="sglang does not serve the model 'builtin:reverse-tiny'"):
        SglangEngine(model="builtin:reverse-tiny")


def test_no_more_tokens_are_asked_of_it_than_fit_behind_the_prompt(tmp_path: Path) -> None:
    engine = SglangEngine(
        model=str(write_tiny_model(tmp_path / "model")), config={"maxModelLen": 10}
    )
    request = GenerationRequest((5,) * 7, SamplingConfig(max_tokens=64), seed=1)
    assert engine._sampling(request)[1] == 3


def test_it_is_asked_to_stop_at_the_end_tokens_of_model_and_tokenizer(tmp_path: Path) -> None:
    directory = write_tiny_model(tmp_path / "model")
    file = directory / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"eos_token": "<|im_start|>"}))
    engine = SglangEngine(model=str(directory))
    request = GenerationRequest((5,), SamplingConfig(stop_token_ids=(9,)), seed=1)
    assert engine._sampling(request)[0]["stop_token_ids"] == [1, 2, 9]
