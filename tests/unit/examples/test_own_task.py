"""The example of a user's own task: its reward, its prompts, and that they fit together."""

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import yaml

from rollcall_protocol.data_config import DataConfig, DataSource
from rollcall_runtime.data.model_input import ModelInput
from rollcall_runtime.data.prompt_source import open_prompts
from rollcall_runtime.models.open_model import open_model
from rollcall_runtime.tasks.reward_function import load_reward

FOLDER = Path(__file__).parents[3] / "examples" / "own-task"
BOS, SEP, EOS = 0, 1, 2


@pytest.fixture
def reward(monkeypatch: pytest.MonkeyPatch) -> Callable[[Sequence[int], Sequence[int]], float]:
    """The reward as a worker finds it: by the manifest's name, through the import path."""
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.delitem(sys.modules, "sorting", raising=False)
    job = yaml.safe_load((FOLDER / "rljob.yaml").read_text())
    return load_reward(job["spec"]["reward"]["function"])


def test_the_sorted_symbols_get_the_full_reward(
    reward: Callable[[Sequence[int], Sequence[int]], float],
) -> None:
    prompt = (BOS, 9, 4, 4, 12, 3, SEP)
    assert reward(prompt, (3, 4, 4, 9, 12, EOS)) == 1
    assert reward(prompt, (3, 4, 4, 9, 12)) == pytest.approx(5 / 6)
    assert reward(prompt, ()) == 0
    assert reward(prompt, (9, 4, 4, 12, 3, EOS)) == pytest.approx(3 / 6)


def test_the_file_of_prompts_is_what_the_script_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    import make_prompts  # type: ignore[import-not-found]  # noqa: PLC0415

    assert (FOLDER / "prompts.jsonl").read_text().splitlines() == make_prompts.prompts()


def test_the_model_knows_every_symbol_of_the_prompts() -> None:
    data = DataConfig(sources=(DataSource(str(FOLDER / "prompts.jsonl")),))
    source = open_model("builtin:reverse-tiny")
    vocabulary = source.vocabulary
    prompts = open_prompts(data, model=ModelInput.of(source))
    lines = (FOLDER / "prompts.jsonl").read_text().splitlines()
    for index in range(len(lines)):
        prompt = prompts.prompt(index)
        assert prompt is not None
        first, *symbols, last = prompt.tokens
        assert (first, last, len(symbols)) == (BOS, SEP, 5)
        assert all(EOS < symbol < vocabulary for symbol in symbols)
    assert all(set(json.loads(line)) == {"tokens"} for line in lines)


def test_the_config_map_holds_what_the_manifest_mounts() -> None:
    """Kustomize makes the ConfigMap; the pods read it under /task."""
    (generated,) = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())["configMapGenerator"]
    spec = yaml.safe_load((FOLDER / "rljob.yaml").read_text())["spec"]
    assert spec["data"]["prompts"] == "/task/prompts.jsonl"
    assert sorted(generated["files"]) == ["prompts.jsonl", "sorting.py"]
    for owner in (spec["trainer"], *spec["rollouts"]):
        pod = owner["template"]["spec"]
        assert pod["volumes"][0]["configMap"]["name"] == generated["name"]
        assert pod["containers"][0]["volumeMounts"][0]["mountPath"] == "/task"
