"""No sampling setting that a request or a spec may have gives a number that is none."""

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rollcall_protocol.sampling_config import (
    MAX_TEMPERATURE,
    MAX_TOP_K,
    MIN_TEMPERATURE,
    MIN_TOP_P,
    SamplingConfig,
)
from rollcall_runtime.rollout.engines.token_choice import choose, token_logprobs

# A float32 rounds the last one to 1.
EDGES = (MIN_TOP_P, 2 * MIN_TOP_P, 1e-3, 0.5, 1 - 1e-7, 1 - 1e-12, 1.0)
LOGITS = st.lists(
    st.floats(-1e4, 1e4, width=32)
    | st.sampled_from([0.0, 1e-45, -1e-45, 3.0, -math.inf, 1e4, -3e38]),
    min_size=1,
    max_size=12,
).filter(lambda row: max(row) > -1e30)
SETTINGS = st.builds(
    SamplingConfig,
    temperature=st.floats(MIN_TEMPERATURE, MAX_TEMPERATURE)
    | st.sampled_from([MIN_TEMPERATURE, MAX_TEMPERATURE, 1.0]),
    top_p=st.floats(MIN_TOP_P, 1.0) | st.sampled_from(EDGES),
    top_k=st.integers(0, 14) | st.just(MAX_TOP_K),
)


@settings(max_examples=100, deadline=None)
@given(row=LOGITS, sampling=SETTINGS, number=st.floats(0, 1, exclude_max=True))
def test_a_token_with_a_log_probability_is_chosen(
    row: list[float], sampling: SamplingConfig, number: float
) -> None:
    logprobs = token_logprobs(torch.tensor([row]), sampling)
    assert not logprobs.isnan().any()
    assert math.isclose(float(logprobs.exp().sum()), 1, abs_tol=1e-4)
    (token,) = choose(logprobs, torch.tensor([number], dtype=torch.float64))[0].tolist()
    assert -math.inf < float(logprobs[0, token]) <= 0.01


def test_the_likeliest_token_stays_though_a_float32_has_no_number_as_small_as_top_p() -> None:
    sampling = SamplingConfig(top_k=1)
    object.__setattr__(sampling, "top_p", 1e-46)  # refused by now, but whoever asks
    found = token_logprobs(torch.tensor([[0.5, 2.0, 1.0]]), sampling)
    assert found.exp().tolist() == [[0.0, 1.0, 0.0]]
