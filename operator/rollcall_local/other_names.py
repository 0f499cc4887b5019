"""What the fields of an RLJob are called by other trainers: `rollcall init --from`, `rollcall
convert`, and the tables of docs/coming-from.

Read in the sources of TRL 1.16.0 (trainer/grpo_config.py, sft_config.py), verl 0.9.1
(trainer/config), prime-rl at 559b447 (packages/prime-rl-configs) and OpenRLHF 0.11.0
(openrlhf/cli/train_ppo_ray.py).
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


_ENGINE, _ROLLOUT = "spec.trainer.engine.config", "spec.rollouts.engine.config"
_SETTINGS, _SAMPLING = "spec.algorithm.settings", "spec.algorithm.sampling"

TRL = OtherTrainer(
    "TRL",
    "own-task",
    {
        "spec.model.path": "GRPOTrainer(model=...)",
        "spec.data.prompts": "GRPOTrainer(train_dataset=...)",
        "spec.reward.function": "GRPOTrainer(reward_funcs=...); style: trl runs it as it is",
        "spec.reward.parts.weight": "reward_weights",
        "spec.trainer.template": "the processes of `accelerate launch`",
        f"{_ENGINE}.minibatches": "steps_per_generation / gradient_accumulation_steps",
        f"{_ENGINE}.precision": "bf16",
        f"{_ENGINE}.activationCheckpointing": "gradient_checkpointing",
        f"{_ENGINE}.weightDecay": "weight_decay",
        f"{_ENGINE}.maxGradientNorm": "max_grad_norm",
        f"{_ENGINE}.schedule": "lr_scheduler_type",
        f"{_ENGINE}.warmupSteps": "warmup_steps",
        f"{_ENGINE}.loraRank": "peft_config=LoraConfig(r=...)",
        f"{_ENGINE}.loraAlpha": "peft_config=LoraConfig(lora_alpha=...)",
        f"{_ENGINE}.loraTargets": "peft_config=LoraConfig(target_modules=...)",
        "spec.trainer.checkpoint.everySteps": "save_steps",
        "spec.rollouts": 'use_vllm and vllm_mode="server"; the number of servers may change',
        "spec.rollouts.engine": "`trl vllm-serve`: name vllm; tiny is for builtin models alone",
        f"{_ROLLOUT}.tensorParallelSize": "vllm_tensor_parallel_size",
        f"{_ROLLOUT}.maxModelLen": "vllm_max_model_length",
        f"{_ROLLOUT}.gpuMemoryUtilization": "vllm_gpu_memory_utilization",
        "spec.algorithm.name": "loss_type and scale_rewards",
        "spec.algorithm.maxSteps": "max_steps; num_train_epochs is epochs here",
        "spec.algorithm.promptsPerStep": "per_device_train_batch_size x processes x "
        "gradient_accumulation_steps / num_generations",
        "spec.algorithm.groupSize": "num_generations",
        _SAMPLING: "max_completion_length is maxTokens here, top_k is topK",
        f"{_SAMPLING}.temperature": "temperature",
        f"{_SAMPLING}.topP": "top_p",
        f"{_SETTINGS}.normalisation": "scale_rewards: group is group-std",
        f"{_SETTINGS}.aggregation": "loss_type: dapo is token-mean, grpo sequence-mean, dr_grpo "
        "sequence-sum",
        f"{_SETTINGS}.clipLow": "epsilon",
        f"{_SETTINGS}.clipHigh": "epsilon_high",
        f"{_SETTINGS}.dualClip": "delta",
        f"{_SETTINGS}.klCoefficient": "beta",
        f"{_SETTINGS}.entropyCoefficient": "entropy_coef",
        f"{_SETTINGS}.correction": "vllm_importance_sampling_mode: truncate or mask",
        f"{_SETTINGS}.correctionLevel": "vllm_importance_sampling_mode: token or sequence",
        f"{_SETTINGS}.correctionCap": "vllm_importance_sampling_clip_max",
        f"{_SETTINGS}.correctionFloor": "vllm_importance_sampling_clip_min",
        "spec.algorithm.optimizer.learningRate": "learning_rate; it stays as it is here",
        "spec.reference.updateEvery": "sync_ref_model and ref_model_sync_steps",
        "spec.evaluation.everySteps": "eval_steps",
        "spec.evaluation.source": "GRPOTrainer(eval_dataset=...)",
        "spec.evaluation.samples": "num_generations_eval",
        "spec.tracking": "report_to",
    },
)
VERL = OtherTrainer(
    "verl",
    "own-task",
    {
        "spec.model.path": "actor_rollout_ref.model.path",
        "spec.data.prompts": "data.train_files",
        "spec.data.sources": "data.train_files",
        "spec.data.maxTokens": "data.max_prompt_length",
        "spec.data.tooLong": "data.filter_overlong_prompts (Drop) and data.truncation",
        "spec.data.seed": "data.seed",
        "spec.reward.function": "reward.custom_reward_function.path and .name; style: verl runs it",
        "spec.rewardModel.path": "reward.reward_model.model_path",
        "spec.trainer.replicas": "trainer.nnodes",
        "spec.trainer.engine.name": "actor_rollout_ref.actor.strategy",
        f"{_ENGINE}.minibatches": "data.train_batch_size / actor.ppo_mini_batch_size",
        f"{_ENGINE}.precision": "actor_rollout_ref.actor.fsdp_config.dtype",
        f"{_ENGINE}.activationCheckpointing": "model.enable_gradient_checkpointing",
        f"{_ENGINE}.offload": "actor.fsdp_config.param_offload and optimizer_offload",
        f"{_ENGINE}.reshardAfterForward": "actor.fsdp_config.reshard_after_forward",
        f"{_ENGINE}.packing": "actor_rollout_ref.model.use_remove_padding",
        f"{_ENGINE}.maxTokensPerMicrobatch": "actor.ppo_max_token_len_per_gpu, or "
        "ppo_micro_batch_size_per_gpu x (max_prompt_length + max_response_length)",
        f"{_ENGINE}.contextParallel": "actor.ulysses_sequence_parallel_size",
        f"{_ENGINE}.tensorParallel": "actor.megatron.tensor_model_parallel_size",
        f"{_ENGINE}.pipelineParallel": "actor.megatron.pipeline_model_parallel_size",
        f"{_ENGINE}.replicas": "GPUs / actor.fsdp_config.fsdp_size",
        f"{_ENGINE}.weightDecay": "actor.optim.weight_decay",
        f"{_ENGINE}.maxGradientNorm": "actor.grad_clip",
        f"{_ENGINE}.schedule": "actor.optim.lr_scheduler_type",
        f"{_ENGINE}.warmupSteps": "actor.optim.lr_warmup_steps x minibatches",
        f"{_ENGINE}.decaySteps": "trainer.total_training_steps x minibatches",
        f"{_ENGINE}.minLearningRate": "actor.optim.min_lr_ratio",
        f"{_ENGINE}.loraRank": "actor_rollout_ref.model.lora_rank",
        f"{_ENGINE}.loraAlpha": "actor_rollout_ref.model.lora_alpha",
        f"{_ENGINE}.loraTargets": "actor_rollout_ref.model.target_modules",
        "spec.trainer.checkpoint.everySteps": "trainer.save_freq",
        "spec.trainer.template": "trainer.nnodes and trainer.n_gpus_per_node are replicas and "
        "resources here",
        "spec.rollouts": "rollout.nnodes and rollout.n_gpus_per_node; the number may change",
        "spec.rollouts.engine": "actor_rollout_ref.rollout.name; tiny is for builtin models alone",
        f"{_ROLLOUT}.concurrency": "at most rollout.max_num_seqs / rollout.n",
        f"{_ROLLOUT}.dtype": "actor_rollout_ref.rollout.dtype",
        f"{_ROLLOUT}.maxModelLen": "actor_rollout_ref.rollout.max_model_len",
        f"{_ROLLOUT}.tensorParallelSize": "rollout.tensor_model_parallel_size",
        f"{_ROLLOUT}.arguments": "rollout.enforce_eager",
        "spec.algorithm.name": "algorithm.adv_estimator",
        "spec.algorithm.maxSteps": "trainer.total_training_steps; total_epochs is epochs here",
        "spec.algorithm.promptsPerStep": "data.train_batch_size",
        "spec.algorithm.groupSize": "actor_rollout_ref.rollout.n",
        "spec.algorithm.maxStaleness": "trainer.v1.sampler.max_off_policy_threshold - 1; "
        "async_training.staleness_threshold, in versions here",
        _SAMPLING: "data.max_response_length is maxTokens here, actor_rollout_ref.rollout.top_k is "
        "topK",
        f"{_SAMPLING}.temperature": "actor_rollout_ref.rollout.temperature",
        f"{_SAMPLING}.topP": "actor_rollout_ref.rollout.top_p",
        f"{_SETTINGS}.baseline": "algorithm.adv_estimator",
        f"{_SETTINGS}.normalisation": "algorithm.norm_adv_by_std_in_grpo",
        f"{_SETTINGS}.discount": "algorithm.gamma",
        f"{_SETTINGS}.gaeLambda": "algorithm.lam",
        f"{_SETTINGS}.objective": "actor_rollout_ref.actor.policy_loss.loss_mode",
        f"{_SETTINGS}.clipLow": "actor_rollout_ref.actor.clip_ratio_low",
        f"{_SETTINGS}.clipHigh": "actor_rollout_ref.actor.clip_ratio_high",
        f"{_SETTINGS}.dualClip": "actor_rollout_ref.actor.clip_ratio_c",
        f"{_SETTINGS}.ratioBase": "algorithm.rollout_correction.bypass_mode",
        f"{_SETTINGS}.correction": "algorithm.rollout_correction.rollout_is; null is none",
        f"{_SETTINGS}.correctionLevel": "algorithm.rollout_correction.rollout_is",
        f"{_SETTINGS}.correctionCap": "algorithm.rollout_correction.rollout_is_threshold",
        f"{_SETTINGS}.correctionFloor": "algorithm.rollout_correction.rollout_is_threshold",
        f"{_SETTINGS}.klCoefficient": "actor_rollout_ref.actor.kl_loss_coef, with use_kl_loss",
        f"{_SETTINGS}.klEstimator": "actor_rollout_ref.actor.kl_loss_type: low_var_kl is k3",
        f"{_SETTINGS}.klTerm": "actor.use_kl_loss or algorithm.use_kl_in_reward",
        f"{_SETTINGS}.entropyCoefficient": "actor_rollout_ref.actor.entropy_coeff",
        f"{_SETTINGS}.aggregation": "actor_rollout_ref.actor.loss_agg_mode",
        f"{_SETTINGS}.aggregationLength": "actor.loss_scale_factor, or data.max_response_length",
        f"{_SETTINGS}.dynamicSampling": "algorithm.filter_groups.enable",
        f"{_SETTINGS}.dynamicSamplingLimit": "algorithm.filter_groups.max_num_gen_batches - 1",
        f"{_SETTINGS}.overlongLimit": "reward.reward_kwargs.max_resp_len",
        f"{_SETTINGS}.overlongBuffer": "reward.reward_kwargs.overlong_buffer_cfg.len",
        f"{_SETTINGS}.overlongPenalty": "reward.reward_kwargs.overlong_buffer_cfg.penalty_factor",
        f"{_SETTINGS}.valueClip": "critic.cliprange_value",
        "spec.algorithm.optimizer.learningRate": "actor_rollout_ref.actor.optim.lr",
        "spec.critic.path": "critic.model.path",
        "spec.critic.learningRate": "critic.optim.lr",
        "spec.critic.warmupSteps": "trainer.critic_warmup",
        "spec.evaluation.everySteps": "trainer.test_freq",
        "spec.evaluation.source": "data.val_files",
        "spec.evaluation.samples": "actor_rollout_ref.rollout.val_kwargs.n",
        "spec.tracking.wandbProject": "trainer.project_name, with wandb in trainer.logger",
        "spec.weightSync.triggerParameterSyncStep": "trainer.v1.separate_async.parameter_sync_step",
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
PRIME_RL = OtherTrainer(
    "prime-rl",
    "own-task",
    {
        "spec.model.path": "model.name",
        "spec.data.prompts": "the taskset of orchestrator.train.source.env",
        "spec.data.sources.weight": "orchestrator.train.source.ratio",
        "spec.reward.function": "the rewards of the verifiers environment",
        "spec.trainer.template": "deployment.num_train_gpus, or num_train_nodes x gpus_per_node",
        f"{_ENGINE}.activationCheckpointing": "trainer.model.ac",
        f"{_ENGINE}.offload": "trainer.model.optim_cpu_offload and fsdp_cpu_offload",
        f"{_ENGINE}.reshardAfterForward": "trainer.model.reshard_after_forward",
        f"{_ENGINE}.compile": "trainer.model.compile",
        f"{_ENGINE}.contextParallel": "trainer.model.cp, with cp_style ulysses",
        f"{_ENGINE}.replicas": "trainer.model.dp_replicate",
        f"{_ENGINE}.maxTokensPerMicrobatch": "trainer.model.seq_len",
        f"{_ENGINE}.logprobChunk": "trainer.model.fused_lm_head_token_chunk_size",
        f"{_ENGINE}.weightDecay": "trainer.optim.weight_decay",
        f"{_ENGINE}.maxGradientNorm": "trainer.optim.max_norm",
        f"{_ENGINE}.schedule": "trainer.scheduler.type",
        f"{_ENGINE}.warmupSteps": "trainer.scheduler.warmup_steps",
        f"{_ENGINE}.loraRank": "trainer.model.lora.rank",
        f"{_ENGINE}.loraAlpha": "trainer.model.lora.alpha",
        f"{_ENGINE}.loraTargets": "trainer.model.lora.target_modules",
        "spec.trainer.checkpoint.everySteps": "ckpt.interval",
        "spec.rollouts": "deployment.num_infer_gpus; the number may change",
        "spec.rollouts.engine": "inference: name vllm; tiny is for builtin models alone",
        f"{_ROLLOUT}.tensorParallelSize": "inference.vllm.tensor_parallel_size",
        f"{_ROLLOUT}.maxModelLen": "inference.vllm.max_model_len",
        f"{_ROLLOUT}.dtype": "inference.vllm.dtype",
        f"{_ROLLOUT}.gpuMemoryUtilization": "inference.vllm.gpu_memory_utilization",
        "spec.algorithm.name": "orchestrator.algo.type; its loss is a masked one (DPPO)",
        "spec.algorithm.maxSteps": "max_steps",
        "spec.algorithm.promptsPerStep": "orchestrator.batch_size / orchestrator.group_size",
        "spec.algorithm.groupSize": "orchestrator.group_size",
        "spec.algorithm.maxStaleness": "orchestrator.max_off_policy_steps",
        "spec.algorithm.maxConcurrentRollouts": "orchestrator.concurrency.max_inflight, in prompts "
        "here",
        _SAMPLING: "orchestrator.train.sampling: max_completion_tokens is maxTokens here",
        f"{_SAMPLING}.temperature": "orchestrator.train.sampling.temperature",
        f"{_SETTINGS}.normalisation": "algo.type grpo takes the mean away alone: none",
        f"{_SETTINGS}.dynamicSampling": "orchestrator.train.filter_zero_advantages, which replaces "
        "no prompt",
        "spec.algorithm.optimizer.learningRate": "trainer.optim.lr",
        "spec.evaluation.everySteps": "orchestrator.eval.interval",
        "spec.evaluation.prompts": "orchestrator.eval.num_examples",
        "spec.evaluation.samples": "orchestrator.eval.group_size",
        "spec.tracking.wandbProject": "monitors.wandb.project",
        "spec.weightSync.engine": "weight_broadcast.type: filesystem, nccl or nixl",
    },
)
OPENRLHF = OtherTrainer(
    "OpenRLHF",
    "own-task",
    {
        "spec.model.path": "--actor.model_name_or_path",
        "spec.data.prompts": "--data.prompt_dataset",
        "spec.data.sources.split": "--data.prompt_split",
        "spec.data.sources.column": "--data.input_key",
        "spec.data.sources.template": "--data.input_template",
        "spec.data.sources.weight": "--data.prompt_probs",
        "spec.reward.function": "--reward.remote_url, as a file with reward_func",
        "spec.rewardModel.path": "--reward.model_name_or_path",
        "spec.trainer.template": "--actor.num_nodes and --actor.num_gpus_per_node are replicas and "
        "resources here",
        f"{_ENGINE}.minibatches": "--rollout.batch_size x --rollout.n_samples_per_prompt / "
        "--train.batch_size",
        f"{_ENGINE}.precision": "--ds.param_dtype",
        f"{_ENGINE}.activationCheckpointing": "--actor.gradient_checkpointing_enable",
        f"{_ENGINE}.offload": "--ds.adam_offload",
        f"{_ENGINE}.packing": "--ds.packing_samples",
        f"{_ENGINE}.maxTokensPerMicrobatch": "--train.max_tokens_per_gpu",
        f"{_ENGINE}.contextParallel": "--ds.ring_attn_size",
        f"{_ENGINE}.weightDecay": "--actor.adam.weight_decay",
        f"{_ENGINE}.maxGradientNorm": "--actor.max_norm",
        f"{_ENGINE}.schedule": "--actor.lr_scheduler",
        f"{_ENGINE}.minLearningRate": "--actor.min_lr_ratio",
        f"{_ENGINE}.loraRank": "--ds.lora.rank",
        f"{_ENGINE}.loraAlpha": "--ds.lora.alpha",
        f"{_ENGINE}.loraTargets": "--ds.lora.target_modules",
        "spec.trainer.checkpoint.everySteps": "--ckpt.save_steps",
        "spec.rollouts": "--vllm.num_engines; the number may change",
        "spec.rollouts.engine": "name vllm; tiny is for builtin models alone",
        f"{_ROLLOUT}.tensorParallelSize": "--vllm.tensor_parallel_size",
        f"{_ROLLOUT}.gpuMemoryUtilization": "--vllm.gpu_memory_utilization",
        f"{_ROLLOUT}.maxModelLen": "--data.max_len",
        "spec.algorithm.name": "--algo.advantage.estimator: gae is ppo, group_norm grpo, dr_grpo "
        "dr-grpo",
        "spec.algorithm.promptsPerStep": "--rollout.batch_size",
        "spec.algorithm.groupSize": "--rollout.n_samples_per_prompt",
        "spec.algorithm.maxStaleness": "--train.async_enable and --train.async_queue_size",
        "spec.algorithm.partialRollout": "--train.partial_rollout_enable",
        _SAMPLING: "--rollout.max_new_tokens is maxTokens here",
        f"{_SAMPLING}.temperature": "--rollout.temperature",
        f"{_SAMPLING}.topP": "--rollout.top_p",
        f"{_SETTINGS}.discount": "--algo.advantage.gamma",
        f"{_SETTINGS}.gaeLambda": "--algo.advantage.lambd",
        f"{_SETTINGS}.objective": "--actor.policy_loss_type",
        f"{_SETTINGS}.clipLow": "--actor.eps_clip, or the first of --actor.eps_clip_low_high",
        f"{_SETTINGS}.clipHigh": "--actor.eps_clip, or the second of --actor.eps_clip_low_high",
        f"{_SETTINGS}.dualClip": "--actor.dual_clip",
        f"{_SETTINGS}.correction": "--algo.advantage.is_correction_type: tis is truncated, icepop "
        "masked",
        f"{_SETTINGS}.correctionFloor": "the first of --algo.advantage.is_correction_threshold",
        f"{_SETTINGS}.correctionCap": "the second of --algo.advantage.is_correction_threshold",
        f"{_SETTINGS}.klCoefficient": "--algo.kl.init_coef",
        f"{_SETTINGS}.klEstimator": "--algo.kl.estimator",
        f"{_SETTINGS}.klTerm": "--algo.kl.use_loss",
        f"{_SETTINGS}.entropyCoefficient": "--actor.entropy_coef",
        f"{_SETTINGS}.dynamicSampling": "--algo.dynamic_filtering_enable",
        f"{_SETTINGS}.overlongBuffer": "--reward.overlong_buffer_len",
        f"{_SETTINGS}.overlongPenalty": "--reward.overlong_penalty_factor",
        f"{_SETTINGS}.valueClip": "--critic.value_clip",
        "spec.algorithm.optimizer.learningRate": "--actor.adam.lr",
        "spec.critic.path": "--critic.model_name_or_path",
        "spec.critic.learningRate": "--critic.adam.lr",
        "spec.critic.warmupSteps": "--critic.freezing_steps",
        "spec.evaluation.everySteps": "--eval.steps",
        "spec.evaluation.source": "--eval.dataset and --eval.split",
        "spec.evaluation.samples": "--eval.n_samples_per_prompt",
        "spec.tracking.wandbProject": "--logger.wandb.project",
        "spec.tracking.folder": "--logger.tensorboard_dir",
    },
)
OTHER_TRAINERS = {
    "trl": TRL,
    "verl": VERL,
    "sft": SFT,
    "prime-rl": PRIME_RL,
    "openrlhf": OPENRLHF,
}


def annotated(text: str, other: OtherTrainer, fields: Mapping[str, int]) -> str:
    """A manifest with a comment above each of its fields that has another name there.

    `fields` are numbers of lines, from 0, by path.
    """
    lines = text.split("\n")
    there = [path for path in other.names if path in fields]
    for path in sorted(there, key=lambda path: fields[path], reverse=True):
        number = fields[path]
        indent = len(lines[number]) - len(lines[number].lstrip(" -"))
        lines.insert(number, f"{' ' * indent}# {other.title}: {other.names[path]}")
    return "\n".join(lines)
