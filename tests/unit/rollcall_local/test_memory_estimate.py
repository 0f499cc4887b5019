"""What a job needs for its weights, by estimate."""

from rollcall_local.memory_estimate import estimate, size

BILLION = 10**9


def test_full_training_keeps_weights_gradients_two_moments_and_what_is_sent() -> None:
    needed = estimate(BILLION, adapters_only=False, rollouts=2)
    assert needed.trainer == BILLION * (4 + 4 + 8 + 4)
    assert needed.rollout == BILLION * (4 + 4)
    assert needed.whole == needed.trainer + 2 * needed.rollout


def test_a_supervised_job_sends_nothing() -> None:
    assert estimate(BILLION, adapters_only=False, rollouts=0).whole == BILLION * 16


def test_adapters_alone_need_no_gradients_of_the_model() -> None:
    assert estimate(BILLION, adapters_only=True, rollouts=1).trainer == BILLION * 8


def test_the_sentence_says_that_it_is_an_estimate_and_of_what() -> None:
    text = estimate(BILLION, adapters_only=False, rollouts=2).sentence()
    assert "1,000,000,000 parameters need 18.6 GiB in the trainer by estimate" in text
    assert "7.5 GiB in each of 2 rollouts; activations and Python itself come on top" in text


def test_small_sizes_are_in_mebibytes() -> None:
    assert (size(5 << 20), size(3 << 30)) == ("5.0 MiB", "3.0 GiB")
