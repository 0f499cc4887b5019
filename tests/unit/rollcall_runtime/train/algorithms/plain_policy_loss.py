"""The policy's loss written in plain loops over numbers, close to the papers' formulas."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rollcall_protocol.algorithm_settings import AlgorithmSettings


@dataclass(frozen=True)
class PlainRow:
    """The log-probabilities of one response's tokens, and their advantages."""

    policy: Sequence[float]
    proximal: Sequence[float]
    behaviour: Sequence[float]
    reference: Sequence[float]
    entropy: Sequence[float]
    advantages: Sequence[float]


def plain_policy_loss(rows: Sequence[PlainRow], settings: AlgorithmSettings) -> float:
    """The loss as it is minimised: the sum over tokens, divided."""
    total, tokens = 0.0, 0
    for row in rows:
        count = len(row.policy)
        losses = [_token(row, at, settings) for at in range(count)]
        tokens += count
        if settings.aggregation == "token-mean":
            total += sum(losses)
        elif settings.aggregation == "sequence-mean":
            total += sum(losses) / count
        else:
            total += sum(losses) / settings.aggregation_length
    return total / (tokens if settings.aggregation == "token-mean" else len(rows))


def _token(row: PlainRow, at: int, settings: AlgorithmSettings) -> float:
    base = row.proximal if settings.ratio_base == "proximal" else row.behaviour
    start = row.policy if settings.objective == "policy-gradient" else base
    loss = _weight(start, row.behaviour, at, settings) * _objective(row, base, at, settings)
    if settings.kl_coefficient and settings.kl_term == "loss":
        d = row.policy[at] - row.reference[at]
        kl = {"k1": d, "k2": d * d / 2, "k3": math.exp(-d) - 1 + d}[settings.kl_estimator]
        loss += settings.kl_coefficient * kl
    return loss - settings.entropy_coefficient * row.entropy[at]


def _weight(
    start: Sequence[float], behaviour: Sequence[float], at: int, settings: AlgorithmSettings
) -> float:
    if settings.correction == "none":
        return 1.0
    if settings.correction_level == "token":
        ratio = math.exp(start[at] - behaviour[at])
    else:
        ratio = 1.0
        for above, below in zip(start, behaviour, strict=True):
            ratio *= math.exp(above - below)
    if settings.correction == "truncated":
        return min(ratio, settings.correction_cap)
    return ratio if settings.correction_floor <= ratio <= settings.correction_cap else 0.0


def _objective(row: PlainRow, base: Sequence[float], at: int, settings: AlgorithmSettings) -> float:
    advantage = row.advantages[at]
    if settings.objective == "policy-gradient":
        return -advantage * row.policy[at]
    if settings.objective == "gspo":
        logs = [p - b for p, b in zip(row.policy, base, strict=True)]
        ratio = math.exp(sum(logs) / len(logs))
    else:
        ratio = math.exp(row.policy[at] - base[at])
    clipped = min(max(ratio, 1 - settings.clip_low), 1 + settings.clip_high)
    if settings.objective == "cispo":
        return -clipped * advantage * row.policy[at]
    loss = -min(ratio * advantage, clipped * advantage)
    if settings.dual_clip and advantage < 0:
        loss = min(loss, -settings.dual_clip * advantage)
    return loss
