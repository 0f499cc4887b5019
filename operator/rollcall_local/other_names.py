"""What the fields of an RLJob are called by other trainers.

TRL: https://huggingface.co/docs/trl/grpo_trainer and sft_trainer. verl:
https://verl.readthedocs.io/en/latest/examples/config.html
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OtherTrainer:
    """A trainer that a user comes from.

    Attributes:
        title: how it is called.
        example: name of the example that a user of it begins with.
        names: its settings by the field that takes their place.
    """

    title: str
    example: str
    names: Mapping[str, str]


TRL = OtherTrainer(
    "TRL",
    "own-task",
    {
        "spec.model.path": "GRPOTrainer(model=...)",
        "spec.data.prompts": "GRPOTrainer(train_dataset=...)",
        "spec.reward.function": "GRPOTrainer(reward_funcs=...); style: trl runs it as it is",
        "spec.trainer.template": "the processes of `accelerate launch`",
        "spec.rollouts": 'use_vllm and vllm_mode="server"; the number of servers may change',
        "spec.rollouts.engine": "`trl vllm-serve`: name vllm; tiny is for builtin models alone",
        "spec.algorithm.name": "loss_type and scale_rewards",
        "spec.algorithm.maxSteps": "max_steps; num_train_epochs is epochs here",
        "spec.algorithm.promptsPerStep": "per_device_train_batch_size x processes x "
        "gradient_accumulation_steps / num_generations",
        "spec.algorithm.groupSize": "num_generations",
        "spec.algorithm.sampling": "max_completion_length is maxTokens here, top_k is topK",
        "spec.algorithm.sampling.temperature": "temperature",
        "spec.algorithm.sampling.topP": "top_p",
        "spec.algorithm.settings.clipLow": "epsilon",
        "spec.algorithm.settings.clipHigh": "epsilon_high",
        "spec.algorithm.settings.klCoefficient": "beta",
        "spec.algorithm.optimizer.learningRate": "learning_rate; it stays as it is here",
    },
)
VERL = OtherTrainer(
    "verl",
    "own-task",
    {
        "spec.model.path": "actor_rollout_ref.model.path",
        "spec.data.prompts": "data.train_files",
        "spec.reward.function": "reward.custom_reward_function; style: verl runs it as it is",
        "spec.trainer.template": "trainer.nnodes and trainer.n_gpus_per_node are replicas and "
        "resources here",
        "spec.rollouts": "rollout.nnodes and rollout.n_gpus_per_node; the number may change",
        "spec.rollouts.engine": "actor_rollout_ref.rollout.name; tiny is for builtin models alone",
        "spec.algorithm.name": "algorithm.adv_estimator",
        "spec.algorithm.maxSteps": "trainer.total_training_steps; total_epochs is epochs here",
        "spec.algorithm.promptsPerStep": "data.train_batch_size",
        "spec.algorithm.groupSize": "actor_rollout_ref.rollout.n",
        "spec.algorithm.maxStaleness": "async_training.staleness_threshold, in versions here",
        "spec.algorithm.sampling": "data.max_response_length is maxTokens here, "
        "actor_rollout_ref.rollout.top_k is topK",
        "spec.algorithm.sampling.temperature": "actor_rollout_ref.rollout.temperature",
        "spec.algorithm.sampling.topP": "actor_rollout_ref.rollout.top_p",
        "spec.algorithm.settings.clipLow": "actor_rollout_ref.actor.clip_ratio_low",
        "spec.algorithm.settings.clipHigh": "actor_rollout_ref.actor.clip_ratio_high",
        "spec.algorithm.settings.klCoefficient": "actor_rollout_ref.actor.kl_loss_coef",
        "spec.algorithm.optimizer.learningRate": "actor_rollout_ref.actor.optim.lr",
    },
)
SFT = OtherTrainer(
    "TRL",
    "own-answers",
    {
        "spec.model.path": "SFTTrainer(model=...)",
        "spec.data.prompts": "SFTTrainer(train_dataset=...)",
        "spec.supervised.rowsPerStep": "per_device_train_batch_size x processes x "
        "gradient_accumulation_steps",
        "spec.supervised.epochs": "num_train_epochs; max_steps is maxSteps here",
        "spec.supervised.learningRate": "learning_rate",
        "spec.trainer.template": "the processes of `accelerate launch`",
    },
)
OTHER_TRAINERS = {"trl": TRL, "verl": VERL, "sft": SFT}


def annotated(text: str, other: OtherTrainer, fields: Mapping[str, int]) -> str:
    """A manifest with a comment above each field that has another name there.

    `fields` are numbers of lines, from 0, by path; KeyError if one of the names has none.
    """
    lines = text.split("\n")
    for path in sorted(other.names, key=lambda path: fields[path], reverse=True):
        number = fields[path]
        indent = len(lines[number]) - len(lines[number].lstrip(" -"))
        lines.insert(number, f"{' ' * indent}# {other.title}: {other.names[path]}")
    return "\n".join(lines)
