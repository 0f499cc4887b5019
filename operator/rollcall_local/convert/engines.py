"""The training engine and the rollouts' inference engine of a job of verl."""

from typing import Any

from rollcall_local.convert.algorithm import minibatches
from rollcall_local.convert.settings import VerlSettings
from rollcall_local.convert.source import ConvertError
from rollcall_protocol.settings_reader import camel_case
from rollcall_protocol.train_settings import BUILT_IN, EngineSettings, LoopSettings

_ACTOR, _ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
_MODEL, _OPTIM = "actor_rollout_ref.model", f"{_ACTOR}.optim"
_ENGINES = {"vllm": "vllm", "sglang": "sglang", "hf": "transformers"}
_PRECISIONS = {"bfloat16": "bf16", "bf16": "bf16", "float32": "fp32", "fp32": "fp32"}
_ALL_LINEAR = "q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj"
_SERVERS = ("vllm", "sglang")


def training_engine(settings: VerlSettings, steps: int | None) -> dict[str, Any]:
    """`spec.trainer.engine`; `steps` of the whole job bound a schedule. ConvertError."""
    name = settings.text(f"{_ACTOR}.strategy")
    if (chosen := settings.text("model_engine")) not in ("", "dp"):
        name = chosen
    wanted = _optimizer(settings, steps) | _memory(settings) | _mesh(settings, name)
    wanted |= _batches(settings) | _adapters(settings)
    known = BUILT_IN.get(name)
    if known is None:
        settings.say(f"{_ACTOR}.strategy", "there is no such training engine; see docs/training.md")
        known = BUILT_IN["fsdp2"]
    config: dict[str, Any] = {}
    for setting, (value, key) in wanted.items():
        if value == getattr(EngineSettings(), setting):
            continue
        if setting in known:
            config[camel_case(setting)] = value
        elif settings.given(key):
            settings.say(key, f"the engine {name} does not have {camel_case(setting)}")
    if (batches := minibatches(settings)) != LoopSettings().minibatches:
        config["minibatches"] = batches
    return {"name": name, "config": config}


def inference_engine(settings: VerlSettings, *, prompts: int, replicas: int) -> dict[str, Any]:
    """`spec.rollouts[].engine` of replicas that share so many prompts; ConvertError."""
    given = settings.text(f"{_ROLLOUT}.name")
    name = _ENGINES.get(given, given)
    if not name:
        settings.say(f"{_ROLLOUT}.name", "verl's own examples give it: vllm or sglang")
    length = settings.count("data.max_prompt_length") + settings.count("data.max_response_length")
    at_once = max(1, (settings.whole(f"{_ROLLOUT}.max_num_seqs") or 256) // _samples(settings))
    config: dict[str, Any] = {"concurrency": min(at_once, -(-prompts // replicas))}
    dtype, parallel = settings.text(f"{_ROLLOUT}.dtype"), tensor_parallel(settings)
    if name in _SERVERS:
        config["dtype"] = dtype
        config["maxModelLen"] = settings.whole(f"{_ROLLOUT}.max_model_len") or length
        if parallel > 1:
            config["tensorParallelSize"] = parallel
    if name == "vllm" and settings.flag(f"{_ROLLOUT}.enforce_eager"):
        config["arguments"] = "--enforce-eager"
    return {**({"name": name} if name else {}), "config": config}


def tensor_parallel(settings: VerlSettings) -> int:
    """GPUs of a rollout."""
    return settings.count(f"{_ROLLOUT}.tensor_model_parallel_size")


def _samples(settings: VerlSettings) -> int:
    return settings.count(f"{_ROLLOUT}.n")


def _optimizer(settings: VerlSettings, steps: int | None) -> dict[str, tuple[Any, str]]:
    """Each setting with verl's name for it."""
    key = f"{_OPTIM}.weight_decay"
    found: dict[str, tuple[Any, str]] = {"weight_decay": (settings.number(key), key)}
    if settings.text(f"{_OPTIM}.optimizer") not in ("AdamW", "adam"):
        settings.say(f"{_OPTIM}.optimizer", "adamw is the optimizer")
    betas = settings.get(f"{_OPTIM}.betas")
    if isinstance(betas, list) and len(betas) == 2:
        found |= {f"beta{n + 1}": (beta, f"{_OPTIM}.betas") for n, beta in enumerate(betas)}
    else:
        raise ConvertError(f"{_OPTIM}.betas: must be two numbers, not {betas!r}")
    clip = f"{_ACTOR}.grad_clip"
    found["max_gradient_norm"] = (settings.number(clip, f"{_OPTIM}.clip_grad"), clip)
    # verl's schedule counts batches, and that of an engine counts optimizer steps.
    each = minibatches(settings)
    warmup = f"{_OPTIM}.lr_warmup_steps"
    first = settings.whole(warmup) or 0
    if first < 0:
        warmup = f"{_OPTIM}.lr_warmup_steps_ratio"
        share = settings.number(warmup) or 0
        first = int(share * (steps or 0))
        if share and steps is None:
            settings.say(warmup, "warmupSteps needs trainer.total_training_steps")
    found["warmup_steps"] = (first * each, warmup)
    kind = f"{_OPTIM}.lr_scheduler_type"
    schedule = settings.text(f"{_OPTIM}.warmup_style", kind) or settings.text(kind)
    if schedule == "cosine" and steps is None:
        settings.say(kind, "schedule cosine needs trainer.total_training_steps; it is constant")
    elif schedule == "cosine":
        least = f"{_OPTIM}.min_lr_ratio"
        found["schedule"] = ("cosine", kind)
        found["decay_steps"] = (max(1, steps - first) * each if steps else 0, kind)
        found["min_learning_rate"] = (settings.number(least) or 0.0, least)
    elif schedule != "constant":
        settings.say(kind, "there is no such schedule; constant, linear or cosine")
    return found


def _memory(settings: VerlSettings) -> dict[str, tuple[Any, str]]:
    dtype = f"{_ACTOR}.fsdp_config.dtype"
    precision = _PRECISIONS.get(settings.text(dtype))
    if precision is None:
        settings.say(dtype, "there is no such precision; bf16 is written")
    recompute = f"{_MODEL}.enable_gradient_checkpointing"
    parameters = f"{_ACTOR}.fsdp_config.param_offload"
    optimizer = f"{_ACTOR}.fsdp_config.optimizer_offload"
    offload, key = "none", parameters
    if settings.flag(optimizer):
        offload, key = "optimizer", optimizer
    if settings.flag(parameters):
        offload, key = "parameters", parameters
    again = f"{_ACTOR}.fsdp_config.reshard_after_forward"
    return {
        "precision": (precision or "bf16", dtype),
        "activation_checkpointing": ("full" if settings.flag(recompute) else "none", recompute),
        "offload": (offload, key),
        "reshard_after_forward": (settings.flag(again), again),
    }


def _mesh(settings: VerlSettings, name: str) -> dict[str, tuple[Any, str]]:
    above = f"{_ACTOR}.{name}"
    keys = {"context_parallel": f"{_ACTOR}.ulysses_sequence_parallel_size"}
    if name in ("megatron", "torchtitan"):
        keys = {
            "tensor_parallel": f"{above}.tensor_model_parallel_size",
            "pipeline_parallel": f"{above}.pipeline_model_parallel_size",
            "context_parallel": f"{above}.context_parallel_size",
        }
    found: dict[str, tuple[Any, str]] = {
        setting: (settings.whole(key) or 1, key) for setting, key in keys.items()
    }
    whole, group = ranks(settings), settings.whole(f"{_ACTOR}.fsdp_config.fsdp_size") or -1
    if 0 < group < whole:
        found["replicas"] = (whole // group, f"{_ACTOR}.fsdp_config.fsdp_size")
    return found


def ranks(settings: VerlSettings) -> int:
    """GPUs of the trainer."""
    return settings.count("trainer.nnodes") * settings.count("trainer.n_gpus_per_node")


def _batches(settings: VerlSettings) -> dict[str, tuple[Any, str]]:
    remove = f"{_MODEL}.use_remove_padding"
    found: dict[str, tuple[Any, str]] = {"packing": (settings.flag(remove), remove)}
    rows = f"{_ACTOR}.ppo_micro_batch_size_per_gpu"
    most = f"{_ACTOR}.ppo_max_token_len_per_gpu"
    length = settings.count("data.max_prompt_length") + settings.count("data.max_response_length")
    if settings.flag(f"{_ACTOR}.use_dynamic_bsz"):
        found["max_tokens_per_microbatch"] = (settings.count(most), most)
    elif settings.whole(rows) is not None:
        found["max_tokens_per_microbatch"] = (settings.count(rows) * length, rows)
    return found


def _adapters(settings: VerlSettings) -> dict[str, tuple[Any, str]]:
    rank = settings.whole(f"{_MODEL}.lora_rank") or 0
    if not rank:
        return {}
    targets = settings.get(f"{_MODEL}.target_modules")
    names = ",".join(map(str, targets)) if isinstance(targets, list) else str(targets)
    if names == "all-linear":
        names = _ALL_LINEAR
        why = "the names of the linear layers of Qwen and Llama are written; see loraTargets"
        settings.say(f"{_MODEL}.target_modules", why)
    return {
        "lora_rank": (rank, f"{_MODEL}.lora_rank"),
        "lora_alpha": (settings.number(f"{_MODEL}.lora_alpha"), f"{_MODEL}.lora_alpha"),
        "lora_targets": (names, f"{_MODEL}.target_modules"),
    }
