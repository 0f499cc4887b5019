"""`rollcall convert verl` writes the RLJob of a job of verl, and says what is not in it."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from rollcall_local.convert import settings
from rollcall_local.convert.command import main

CONFIGS = Path(__file__).with_name("configs")
STEPS = "trainer.total_training_steps=100"


class Answer:
    """What the command wrote, and how it ended."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.text, self.lines = code, out, err.splitlines()

    @property
    def spec(self) -> dict[str, Any]:
        found = yaml.safe_load(self.text)["spec"]
        assert isinstance(found, dict)
        return found

    def about(self, key: str) -> str:
        """The one line about a setting."""
        (line,) = (line for line in self.lines if line.startswith((f"{key}=", f"{key}:")))
        return line


@pytest.fixture
def convert(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Any:
    """Runs it on a file of `configs`, or on a text."""

    def run(config: str, *words: str, name: str = "config.yaml") -> Answer:
        file = CONFIGS / f"{config}.yaml"
        if not config.isalnum() or not file.exists():
            file = tmp_path / name
            file.write_text(config)
        code = main(["verl", str(file), *words])
        said = capsys.readouterr()
        return Answer(code, said.out, said.err)

    return run


def test_grpo_of_gsm8k(convert: Any) -> None:
    answer = convert("grpo", STEPS)
    assert answer.code == 0
    spec = answer.spec
    assert spec["model"] == {"path": "Qwen/Qwen3-8B"}
    data = {"prompts": "/data/gsm8k/train.parquet", "maxTokens": 512, "tooLong": "Drop"}
    assert spec["data"] == data
    assert spec["algorithm"] == {
        "name": "grpo",
        "maxSteps": 100,
        "promptsPerStep": 1024,
        "groupSize": 5,
        "maxStaleness": 0,
        "maxConcurrentRollouts": 1024,
        "sampling": {"maxTokens": 1024, "temperature": "1", "topP": "1"},
        "settings": {"dualClip": "3", "correction": "none", "klCoefficient": "0.001"},
        "optimizer": {"learningRate": "1e-06"},
    }
    engine = spec["trainer"]["engine"]
    assert engine["name"] == "fsdp"
    assert engine["config"] == {
        "weightDecay": 0.01,
        "precision": "bf16",
        "activationCheckpointing": "full",
        "reshardAfterForward": True,
        "packing": True,
        "maxTokensPerMicrobatch": 32 * 1536,
        "minibatches": 4,
    }
    (pool,) = spec["rollouts"]
    assert pool["replicas"] == 4
    assert pool["engine"]["name"] == "vllm"
    assert pool["engine"]["config"]["tensorParallelSize"] == 2
    assert pool["engine"]["config"]["maxModelLen"] == 1536
    limits = {"nvidia.com/gpu": 2}
    assert pool["template"]["spec"]["containers"][0]["resources"]["limits"] == limits
    assert spec["evaluation"]["everySteps"] == 5
    assert spec["evaluation"]["source"] == {"name": "/data/gsm8k/test.parquet"}
    assert spec["trainer"]["checkpoint"]["everySteps"] == 20
    assert spec["tracking"] == {"wandbProject": "verl_grpo_example_gsm8k"}
    assert "critic" not in spec


def test_ppo_with_a_critic(convert: Any) -> None:
    answer = convert("ppo", STEPS)
    assert answer.code == 0
    algorithm = answer.spec["algorithm"]
    assert algorithm["name"] == "ppo"
    assert algorithm["groupSize"] == 1
    settings = {"gaeLambda": "1", "dualClip": "3", "correction": "none", "valueClip": "0.5"}
    assert algorithm["settings"] == settings
    assert answer.spec["critic"] == {"learningRate": "1e-05"}
    assert answer.spec["rollouts"][0]["replicas"] == 1
    assert "tooLong: Fail" in answer.text
    assert "tracking" not in answer.spec


def test_adapters(convert: Any) -> None:
    answer = convert("lora", STEPS)
    assert answer.code == 0
    config = answer.spec["trainer"]["engine"]["config"]
    assert config["loraRank"] == 64
    assert config["loraAlpha"] == 32
    assert config["loraTargets"].split(",")[-1] == "down_proj"
    assert config["minibatches"] == 1
    assert answer.spec["algorithm"]["optimizer"]["learningRate"] == "3e-06"
    shuffle = "data.shuffle=False: each pass over the prompts has an order of its own"
    assert answer.about("data.shuffle") == shuffle


def test_a_job_without_a_number_of_steps_has_verls_epochs(convert: Any) -> None:
    answer = convert("grpo")
    assert answer.code == 0
    assert answer.spec["algorithm"]["epochs"] == 15
    assert "maxSteps" not in answer.spec["algorithm"]


def test_what_is_missing_is_said_by_its_field(convert: Any) -> None:
    answer = convert("data: {train_batch_size: 8}")
    assert answer.code == 1
    assert "WRONG: spec.rollouts[0].engine.name: is required; add it" in answer.lines


def test_verls_own_function_scores_without_one_of_the_user(convert: Any) -> None:
    reward = {"function": "verl.utils.reward_score:default_compute_score", "style": "verl"}
    assert convert("grpo").spec["reward"] == reward


def test_what_is_not_carried_over_is_said_with_its_value(convert: Any) -> None:
    answer = convert("grpo", STEPS, "actor_rollout_ref.model.use_liger=True")
    liger = "actor_rollout_ref.model.use_liger=True: nothing takes its place"
    assert answer.about("actor_rollout_ref.model.use_liger") == liger
    memory = answer.about("actor_rollout_ref.rollout.gpu_memory_utilization")
    assert "=0.6: a rollout has its cards for itself" in memory
    assert "8 for the trainer, and 8 more for rollouts" in answer.about("trainer.n_gpus_per_node")
    assert "data_source" in answer.about("reward.custom_reward_function.path")


def test_what_is_as_in_verl_is_left_out(convert: Any) -> None:
    answer = convert("grpo", STEPS, "actor_rollout_ref.model.use_liger=False")
    assert not any(line.startswith("actor_rollout_ref.model.use_liger") for line in answer.lines)
    (left,) = (line for line in answer.lines if line.startswith("left out, as verl's defaults: "))
    assert "actor_rollout_ref.model.use_liger" in left
    assert "actor_rollout_ref.rollout.gpu_memory_utilization" not in left


def test_a_whole_configuration_of_verl_says_little(convert: Any) -> None:
    text = settings._DEFAULTS.read_text()
    answer = convert(text, STEPS, "actor_rollout_ref.rollout.name=vllm", "critic.model.path=org/c")
    assert answer.code == 0
    assert len(answer.lines) < 12
    assert not any("nothing takes its place" in line for line in answer.lines)
    assert answer.spec["critic"]["path"] == "org/c"
    assert answer.spec["model"]["path"] == "/models/deepseek-llm-7b-chat"


def test_comments_name_the_settings_of_verl(convert: Any) -> None:
    text = convert("grpo", STEPS).text
    assert "    # verl: data.train_batch_size\n    promptsPerStep: 1024\n" in text
    assert '      # verl: actor_rollout_ref.actor.optim.lr\n      learningRate: "1e-06"\n' in text


SCRIPT = """\
set -x
n_gpus=4
MODEL=${MODEL:-org/model}
python3 -m verl.trainer.main_ppo \\
    algorithm.adv_estimator=rloo \\
    data.train_files="$HOME/data/train.parquet" \\
    data.max_response_length=256 data.train_batch_size=64 \\
    actor_rollout_ref.model.path="${MODEL}" \\
    actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.n=4 \\
    actor_rollout_ref.actor.ppo_mini_batch_size=64 \\
    +trainer.logger='["console","wandb"]' \\
    trainer.n_gpus_per_node=$n_gpus $@ 2>&1 | tee log
"""


def test_a_script_is_read(convert: Any) -> None:
    answer = convert(SCRIPT, STEPS, "data.train_batch_size=128", name="train.sh")
    assert answer.code == 0
    assert answer.spec["model"]["path"] == "org/model"
    assert answer.spec["data"]["prompts"] == "/data/train.parquet"
    assert answer.spec["algorithm"]["promptsPerStep"] == 128
    assert answer.spec["algorithm"]["settings"]["objective"] == "ppo"
    assert answer.spec["algorithm"]["settings"]["aggregation"] == "token-mean"
    assert answer.spec["rollouts"][0]["replicas"] == 2


def test_a_variable_whose_value_is_not_known_is_no_default(convert: Any) -> None:
    script = SCRIPT.replace("train_batch_size=64", "train_batch_size=$((2 * 32))")
    script = script.replace("rollout.n=4", "rollout.n=${each}")
    answer = convert(script, STEPS, name="train.sh")
    assert answer.code == 64
    (line,) = answer.lines
    assert "actor_rollout_ref.rollout.n: have variables of the shell" in line
    words = ["data.train_batch_size=64", "actor_rollout_ref.rollout.n=2"]
    answer = convert(script, STEPS, *words, name="train.sh")
    assert answer.spec["algorithm"]["groupSize"] == 2


@pytest.mark.parametrize(
    ("text", "words", "said"),
    [
        ("a: [1", [], "not YAML"),
        ("- a\n- b\n", [], "not verl's"),
        ("apiVersion: v1\nkind: Pod\n", [], "there is none of verl's sections"),
        ("data: {max_response_length: 5}", ["rollout.n"], "'rollout.n' is no override"),
        ("data: {train_batch_size: many}", [], "data.train_batch_size: must be a number"),
        ("data: {train_batch_size: 0}", [], "data.train_batch_size: must be at least 1, not 0"),
        ("data: {train_batch_size: 1.5}", [], "data.train_batch_size: must be a whole number"),
        ("data: {filter_overlong_prompts: maybe}", [], "must be True or False, not 'maybe'"),
        ("data: {train_files: ''}", [], "must name a file or a folder, not ''"),
        ("data: {prompt_key: [a]}", [], "data.prompt_key: must be text"),
        ("trainer: {nnodes: '${oc.env:NODES}'}", [], "trainer.nnodes: cannot read '${oc.env:"),
        ("data: {seed: '${data.seed}'}", [], "data.seed: cannot read"),
        ("algorithm: {rollout_correction: {rollout_is: all}}", [], "rollout_is: must be token"),
        ("actor_rollout_ref: {actor: {optim: {betas: 1}}}", [], "optim.betas: must be two numbers"),
    ],
)
def test_what_is_wrong_is_one_error(convert: Any, text: str, words: list[str], said: str) -> None:
    answer = convert(text, STEPS, *words)
    assert answer.code == 64
    assert answer.text == ""
    (line,) = answer.lines
    assert line.startswith("rollcall convert: ")
    assert said in line


def test_two_calls_in_a_script_are_not_guessed_between(convert: Any) -> None:
    answer = convert(SCRIPT + SCRIPT, name="train.sh")
    assert answer.code == 64
    assert "2 calls of verl.trainer.main_ppo" in answer.lines[0]


def test_a_file_that_is_not_there_and_one_that_is(tmp_path: Path, convert: Any) -> None:
    assert main(["verl", str(tmp_path / "none.yaml")]) == 64
    (tmp_path / "mine.yaml").write_text("mine")
    assert convert("grpo", STEPS, "-o", str(tmp_path / "mine.yaml")).code == 64
    assert (tmp_path / "mine.yaml").read_text() == "mine"
    assert convert("grpo", STEPS, "-o", str(tmp_path / "new.yaml")).code == 0
    assert yaml.safe_load((tmp_path / "new.yaml").read_text())["kind"] == "RLJob"
