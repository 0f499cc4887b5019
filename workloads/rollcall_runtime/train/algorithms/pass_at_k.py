"""How likely it is that one of k samples of a prompt is right."""

import math


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
