"""The figures of one step under the names that the field uses, for logs and tracking."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

from rollcall_protocol.job_config import EvaluationConfig
from rollcall_protocol.prompts.prompt_ledger import CompletedPrompt
from rollcall_protocol.prompts.trajectory_groups import rewards_of
from rollcall_runtime.coordinator.sync_group_driver import Publication
from rollcall_runtime.train.learning_judge import ADVANTAGES, CUT_OFF
from rollcall_runtime.train.response_ends import ResponseEnds
from rollcall_runtime.train.roles.model_update import ModelUpdate
from rollcall_runtime.train.roles.policy_step import PolicyStepResult

# Of the first update alone: it is the only one whose policy is the one that was published.
_MISMATCH = frozenset({"mismatch_kl", "mismatch_ratio"})
_FIRST = _MISMATCH | {"behave_kl", "same_version"}


def step_figures(
    batch: Sequence[CompletedPrompt], result: PolicyStepResult, ends: ResponseEnds | None = None
) -> dict[str, float]:
    """Rewards, lengths and staleness of the samples, and what the models' updates measured.

    `ends` tells which responses were cut off. Names are those of verl (`actor/pg_loss`,
    `actor/grad_norm`, `response_length/mean`) and prime-rl (`mismatch_kl`); docs/algorithms.md
    lists them. What is not finite is left out.
    """
    behind = [(len(item.lease.tokens), each) for item in batch for each in item.completion.samples]
    samples = [sample for _, sample in behind]
    figures = {
        **_spread(
            "reward", [reward for item in batch for reward in rewards_of(item.completion.samples)]
        ),
        **_spread("response_length", [len(sample.tokens) for sample in samples]),
        **({CUT_OFF: ends.share_cut_off(behind)} if ends and behind else {}),
        **_spread("staleness", [item.age for item in batch]),
        ADVANTAGES: result.with_advantage,
        **_model_figures("actor", "pg_loss", result.actor),
        **_model_figures("critic", "vf_loss", result.critic),
    }
    return {name: value for name, value in figures.items() if math.isfinite(value)}


@dataclass(slots=True)
class StepTimes:
    """Seconds of one step, as far as they are known; `step` is the whole of it."""

    step: float = 0.0
    wait_for_batch: float = 0.0
    wait_for_policy: float = 0.0
    train: float = 0.0
    snapshot: float = 0.0

    def figures(self, *, tokens: int) -> dict[str, float]:
        """The times, the share of the step in which training waited, and tokens a second.

        `tokens`: of the responses that the step trained on. Names follow verl and prime-rl.
        """
        found = {f"timing_s/{name}": seconds for name, seconds in asdict(self).items()}
        if self.step > 0:
            found["trainer/idle_ratio"] = (self.wait_for_batch + self.wait_for_policy) / self.step
            found["perf/tokens_per_second"] = tokens / self.step
        return found


def publication_figures(publication: Publication) -> dict[str, float]:
    """How long a version took to reach all members, and how much they received."""
    return {
        "timing_s/param_sync": publication.stage_seconds + publication.commit_seconds,
        "timing_s/stage": publication.stage_seconds,
        "timing_s/commit": publication.commit_seconds,
        "weight_sync/bytes": float(publication.received_bytes),
    }


def evaluation_figures(
    rewards: Sequence[Sequence[float]], evaluation: EvaluationConfig
) -> dict[str, float]:
    """Mean reward and pass@k of held-out prompts, of which these are their samples' rewards."""
    every = [reward for samples in rewards for reward in samples]
    figures = {"eval/reward/mean": statistics.fmean(every)}
    for k in evaluation.pass_at:
        estimates = [
            pass_at_k(len(samples), sum(r >= evaluation.pass_reward for r in samples), k)
            for samples in rewards
        ]
        figures[f"eval/pass@{k}"] = statistics.fmean(estimates)
    return figures


def _spread(name: str, values: Sequence[float]) -> dict[str, float]:
    if not values:
        return {}
    return {
        f"{name}/mean": statistics.fmean(values),
        f"{name}/min": min(values),
        f"{name}/max": max(values),
    }


def _model_figures(role: str, loss: str, updates: Sequence[ModelUpdate]) -> dict[str, float]:
    if not updates:
        return {}
    figures = {
        loss: _mean(update.loss for update in updates),
        "grad_norm": _mean(update.gradient_norm for update in updates),
        "lr": updates[-1].learning_rate,
    }
    comparable = updates[0].metrics.get("same_version", 1.0) > 0
    for name, value in updates[0].metrics.items():
        if name in _MISMATCH and not comparable:
            continue  # no token was sampled with the weights that were trained
        everywhere = _mean(update.metrics.get(name, math.nan) for update in updates)
        figures[name] = value if name in _FIRST else everywhere
    return {f"{role}/{name}": value for name, value in figures.items()}


def _mean(values: Iterable[float]) -> float:
    """Of those that are finite."""
    finite = [value for value in values if math.isfinite(value)]
    return statistics.fmean(finite) if finite else math.nan


def as_text(figures: Mapping[str, float]) -> str:
    """The figures on one line of a log."""
    return ", ".join(f"{name} {value:.4g}" for name, value in figures.items())


def pass_at_k(samples: int, passed: int, k: int) -> float:
    """The unbiased estimate of pass@k from `samples` of one prompt of which `passed` are right.

    It is 1 - C(samples - passed, k) / C(samples, k): the share of all choices of k samples that
    hold a right one. Source: Chen et al. 2021, "Evaluating large language models trained on code",
    equation 1.
    ValueError unless 1 <= k <= samples and 0 <= passed <= samples.
    """
    if not (1 <= k <= samples and 0 <= passed <= samples):
        raise ValueError(f"pass@{k} needs at least {k} samples, and no more right than there are")
    return 1 - math.comb(samples - passed, k) / math.comb(samples, k)
