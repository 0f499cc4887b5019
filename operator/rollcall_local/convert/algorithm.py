"""`spec.algorithm`, `spec.critic` and `spec.weightSync` of a job of verl."""

from dataclasses import fields
from typing import Any

from rollcall_local.convert.settings import VerlSettings
from rollcall_local.convert.source import ConvertError
from rollcall_protocol.algorithm_settings import PRESETS, AlgorithmSettings
from rollcall_protocol.settings_reader import camel_case

_ACTOR, _ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
_ESTIMATOR = "algorithm.adv_estimator"
# The name of the algorithm, and its baseline and normalisation as verl computes them.
_ESTIMATORS = {
    "gae": ("ppo", "critic", "batch"),
    "grpo": ("grpo", "group-mean", "group-std"),
    "grpo_vectorized": ("grpo", "group-mean", "group-std"),
    "rloo": ("rloo", "leave-one-out", "none"),
    "rloo_vectorized": ("rloo", "leave-one-out", "none"),
    "reinforce_plus_plus": ("reinforce++", "none", "batch"),
    "reinforce_plus_plus_baseline": ("reinforce++", "group-mean", "batch"),
}
_OBJECTIVES = {"vanilla": "ppo", "gspo": "gspo", "cispo": "cispo", "gpg": "policy-gradient"}
_AGGREGATIONS = {
    "token-mean": "token-mean",
    "seq-mean-token-mean": "sequence-mean",
    "seq-mean-token-sum": "sequence-sum",
    "seq-mean-token-sum-norm": "sequence-sum",
}
_KL = {"kl": "k1", "k1": "k1", "mse": "k2", "k2": "k2", "low_var_kl": "k3", "k3": "k3"}
_OVERLONG = (
    "reward.reward_kwargs.overlong_buffer_cfg",
    "reward_model.reward_kwargs.overlong_buffer_cfg",
    "reward_model.overlong_buffer",
)


def algorithm(settings: VerlSettings) -> dict[str, Any]:
    """`spec.algorithm`. Without a number of steps it has no maxSteps; ConvertError."""
    estimator = settings.text(_ESTIMATOR)
    name, baseline, normalisation = _ESTIMATORS.get(estimator, (estimator, "", ""))
    if name not in PRESETS:
        settings.say(_ESTIMATOR, "there is no such algorithm; choose one of docs/algorithms.md")
    elif baseline == "group-mean" and name == "grpo":
        std = settings.flag("algorithm.norm_adv_by_std_in_grpo")
        normalisation = normalisation if std else "none"
    changed: dict[str, Any] = {"baseline": baseline, "normalisation": normalisation}
    changed |= _objective(settings) | _aggregation(settings) | _correction(settings)
    changed |= _divergence(settings) | _batch(settings)
    if baseline == "critic":
        changed["discount"] = settings.number("algorithm.gamma")
        changed["gae_lambda"] = settings.number("algorithm.lam")
        changed["value_clip"] = settings.number("critic.cliprange_value")
    else:
        _without_discount(settings)
    prompts = settings.count("data.train_batch_size")
    staleness = max_staleness(settings)
    return {
        "name": name,
        **_length(settings),
        "promptsPerStep": prompts,
        "groupSize": settings.count(f"{_ROLLOUT}.n"),
        "maxStaleness": staleness,
        "maxConcurrentRollouts": prompts * (staleness + 1),
        "sampling": _sampling(settings),
        "settings": _differences(name, changed),
        "optimizer": {"learningRate": decimal(settings.number(f"{_ACTOR}.optim.lr"))},
    }


def critic(settings: VerlSettings) -> dict[str, Any] | None:
    """`spec.critic`, if there is one."""
    if settings.text(_ESTIMATOR) != "gae":
        return None
    path = settings.text("critic.model.path") if settings.given("critic.model.path") else ""
    same = path in ("", settings.text("actor_rollout_ref.model.path"))
    warmup = settings.whole("trainer.critic_warmup") or 0
    return {
        **({} if same else {"path": path}),
        "learningRate": decimal(settings.number("critic.optim.lr")),
        **({"warmupSteps": warmup} if warmup else {}),
    }


def minibatches(settings: VerlSettings) -> int:
    """Optimizer steps for each batch."""
    prompts = settings.count("data.train_batch_size")
    mini = settings.count(f"{_ACTOR}.ppo_mini_batch_size")
    if prompts % mini and prompts > mini:
        key = f"{_ACTOR}.ppo_mini_batch_size"
        settings.say(key, f"minibatches divide a batch evenly: {prompts // mini} of them here")
    if (settings.whole(f"{_ACTOR}.ppo_epochs") or 1) != 1:
        settings.say(f"{_ACTOR}.ppo_epochs", "a batch is passed over once; see minibatches")
    return max(1, prompts // mini)


def max_staleness(settings: VerlSettings) -> int:
    """Weight versions that a sample may lag behind, by how verl's trainer runs."""
    mode = settings.text("trainer.v1.trainer_mode")
    fully = "async_training.staleness_threshold"
    if settings.given(fully):
        settings.get(fully)
        settings.say(fully, "a share of a batch in verl, a number of versions here: 1 is written")
        return 1
    if mode == "separate_async":
        spans = settings.count("trainer.v1.sampler.max_off_policy_threshold")
        return spans - 1  # verl counts the version that samples, too
    settings.say(
        "trainer.v1.trainer_mode",
        "verl samples and trains in turn, so maxStaleness is 0; raise it to do both at once",
    )
    return 0


def weight_sync(settings: VerlSettings) -> dict[str, Any]:
    """`spec.weightSync`, if it has anything."""
    every = settings.whole("async_training.trigger_parameter_sync_step")
    if every is None and settings.text("trainer.v1.trainer_mode") == "separate_async":
        every = settings.whole("trainer.v1.separate_async.parameter_sync_step")
    return {"triggerParameterSyncStep": every} if every and every > 1 else {}


def decimal(value: float | None) -> str:
    """As a decimal string."""
    return "0" if not value else f"{value:.12g}"


def _length(settings: VerlSettings) -> dict[str, int]:
    """How long the job trains, in steps or in passes over the prompts."""
    steps = settings.whole("trainer.total_training_steps")
    if steps is None:
        return {"epochs": settings.count("trainer.total_epochs")}
    if settings.given("trainer.total_epochs"):
        settings.say("trainer.total_epochs", "trainer.total_training_steps ends the job")
    return {"maxSteps": steps}


def _sampling(settings: VerlSettings) -> dict[str, Any]:
    if not settings.flag(f"{_ROLLOUT}.do_sample"):
        settings.say(f"{_ROLLOUT}.do_sample", "rollouts always sample; the temperature is above 0")
    top_k = settings.whole(f"{_ROLLOUT}.top_k") or 0
    return {
        "maxTokens": settings.count("data.max_response_length"),
        "temperature": decimal(settings.number(f"{_ROLLOUT}.temperature")),
        "topP": decimal(settings.number(f"{_ROLLOUT}.top_p")),
        **({"topK": top_k} if top_k > 0 else {}),
    }


def _objective(settings: VerlSettings) -> dict[str, Any]:
    key = f"{_ACTOR}.policy_loss.loss_mode"
    mode = settings.text(key)
    if mode not in _OBJECTIVES:
        settings.say(key, "there is no such objective; ppo is written")
    objective = _OBJECTIVES.get(mode, "ppo")
    both = settings.number(f"{_ACTOR}.clip_ratio")
    low, high = f"{_ACTOR}.clip_ratio_low", f"{_ACTOR}.clip_ratio_high"
    if settings.given(f"{_ACTOR}.clip_ratio") and not settings.given(low, high):
        why = "without effect in verl, whose clip_ratio_low and clip_ratio_high are 0.2"
        settings.say(f"{_ACTOR}.clip_ratio", why)
    found = {
        "objective": objective,
        "clip_low": both if settings.is_null(low) else settings.number(low),
        "clip_high": both if settings.is_null(high) else settings.number(high),
        "entropy_coefficient": settings.number(f"{_ACTOR}.entropy_coeff"),
    }
    if objective == "ppo":
        found["dual_clip"] = settings.number(f"{_ACTOR}.clip_ratio_c")
    return found


def _aggregation(settings: VerlSettings) -> dict[str, Any]:
    key = f"{_ACTOR}.loss_agg_mode"
    mode = settings.text(key)
    if mode not in _AGGREGATIONS:
        settings.say(key, "there is no such aggregation; token-mean is written")
    found: dict[str, Any] = {"aggregation": _AGGREGATIONS.get(mode, "token-mean")}
    if mode == "seq-mean-token-sum":
        found["aggregation_length"] = 1
    elif mode == "seq-mean-token-sum-norm":
        length = settings.number(f"{_ACTOR}.loss_scale_factor")
        found["aggregation_length"] = round(length or settings.count("data.max_response_length"))
    return found


def _correction(settings: VerlSettings) -> dict[str, Any]:
    above = "algorithm.rollout_correction"
    level, bypass = settings.get(f"{above}.rollout_is"), settings.flag(f"{above}.bypass_mode")
    if bypass:
        if settings.text(f"{above}.loss_type") != "ppo_clip":
            why = "with bypass_mode the clipped ratio to the sampling policy is written"
            settings.say(f"{above}.loss_type", why)
        return {"correction": "none", "ratio_base": "behaviour"}
    if level not in (None, "token", "sequence"):
        raise ConvertError(f"{above}.rollout_is: must be token, sequence or null, not {level!r}")
    if level not in ("token", "sequence"):
        return {"correction": "none"}
    found = {"correction": "truncated", "correction_level": level}
    cap = settings.get(f"{above}.rollout_is_threshold")
    if isinstance(cap, str) and (bounds := cap.split("_")) and len(bounds) == 2:
        found |= {"correction": "masked", "correction_floor": _float(above, bounds[0])}
        cap = bounds[1]
    return found | {"correction_cap": _float(above, cap)}


def _float(above: str, text: object) -> float:
    try:
        return float(str(text))
    except ValueError:
        key = f"{above}.rollout_is_threshold"
        raise ConvertError(f"{key}: must be a number, or two as 0.5_5.0") from None


def _divergence(settings: VerlSettings) -> dict[str, Any]:
    loss = settings.flag(f"{_ACTOR}.use_kl_loss")
    reward = settings.flag("algorithm.use_kl_in_reward")
    weight, kind = f"{_ACTOR}.kl_loss_coef", f"{_ACTOR}.kl_loss_type"
    other_weight, other_kind = "algorithm.kl_ctrl.kl_coef", "algorithm.kl_penalty"
    if reward and not loss:
        weight, kind, other_weight, other_kind = other_weight, other_kind, weight, kind
    if loss and reward:
        settings.say("algorithm.use_kl_in_reward", "there is one KL term; that of the loss is kept")
    unused = [other_weight, other_kind, *([] if loss or reward else [weight, kind])]
    settings.mute(*unused, why="without effect in verl: this KL term is not in use")
    if not (loss or reward):
        return {}
    if settings.text("algorithm.kl_ctrl.type") != "fixed" and reward:
        settings.say("algorithm.kl_ctrl.type", "the coefficient is fixed here")
    estimator = _KL.get(settings.text(kind))
    if estimator is None:
        settings.say(kind, "there is no such estimator; k3 is written")
    return {
        "kl_coefficient": settings.number(weight),
        "kl_estimator": estimator or "k3",
        "kl_term": "loss" if loss else "reward",
    }


def _batch(settings: VerlSettings) -> dict[str, Any]:
    """Settings of which samples a batch is made of."""
    found: dict[str, Any] = {}
    groups = "algorithm.filter_groups"
    if settings.flag(f"{groups}.enable"):
        found["dynamic_sampling"] = True
        batches = settings.whole(f"{groups}.max_num_gen_batches") or 0
        prompts = settings.count("data.train_batch_size")
        asked_for = batches * (settings.whole("data.gen_batch_size") or prompts)
        if batches > 0:
            found["dynamic_sampling_limit"] = min(1000, max(1, -(-asked_for // prompts) - 1))
        if settings.given(f"{groups}.metric"):
            why = "groups whose rewards are all alike are left out, whatever the metric"
            settings.say(f"{groups}.metric", why)
    for above in _OVERLONG:
        if settings.flag(f"{above}.enable"):
            limit = settings.whole(f"{above}.max_resp_len", "data.max_response_length")
            found["overlong_limit"] = limit or settings.count("data.max_response_length")
            found["overlong_buffer"] = settings.count(f"{above}.len")
            found["overlong_penalty"] = settings.number(f"{above}.penalty_factor")
    return found


def _without_discount(settings: VerlSettings) -> None:
    for key in ("algorithm.gamma", "algorithm.lam"):
        if settings.number(key) != 1:
            settings.say(key, "rewards are discounted with a critic alone")


def _differences(name: str, changed: dict[str, Any]) -> dict[str, Any]:
    """What differs from the settings that the name stands for, as the spec has it."""
    known = {field.name: field.default for field in fields(AlgorithmSettings)}
    stands_for = {**known, **PRESETS.get(name, {})}
    return {
        camel_case(key): value if isinstance(value, bool | int | str) else decimal(value)
        for key in known
        if key in changed
        and (value := _as_declared(known[key], changed[key])) not in (stands_for[key], "")
    }


def _as_declared(default: object, value: Any) -> Any:
    return float(value or 0) if isinstance(default, float) else value
