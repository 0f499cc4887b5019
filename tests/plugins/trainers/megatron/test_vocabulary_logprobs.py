"""Log-probabilities and entropy are those of a softmax over the tokens that exist."""

from collections.abc import Iterator

import pytest
import torch
from torch.distributed import (  # type: ignore[attr-defined]
    HashStore,
    destroy_process_group,
    init_process_group,
)

pytest.importorskip("megatron.core", exc_type=ImportError)

from megatron.core import parallel_state

from rollcall_plugins.trainers.megatron.vocabulary_logprobs import (
    entropy_of,
    hide_padding,
    target_logprobs,
)

EXISTING, COLUMNS = 5, 8


@pytest.fixture
def one_rank() -> Iterator[None]:
    init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    parallel_state.initialize_model_parallel(create_gloo_process_groups=False)
    yield
    parallel_state.destroy_model_parallel()
    destroy_process_group()


@pytest.mark.usefixtures("one_rank")
def test_padded_columns_are_no_tokens() -> None:
    torch.manual_seed(1)
    logits = torch.randn(2, 3, COLUMNS, requires_grad=True)
    targets = torch.randint(EXISTING, (2, 3))
    hidden = hide_padding(logits, own_rows=EXISTING)
    entropy = entropy_of(hidden, parallel_state.get_tensor_model_parallel_group())
    logprobs = target_logprobs(hidden, targets)
    (logprobs.sum() + 2 * entropy.sum()).backward()  # type: ignore[no-untyped-call]
    gradient, logits.grad = logits.grad, None

    want = logits[..., :EXISTING].log_softmax(-1)
    chosen = want.gather(-1, targets[..., None])[..., 0]
    spread = -(want.exp() * want).sum(-1)
    (chosen.sum() + 2 * spread.sum()).backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(logprobs, chosen)
    torch.testing.assert_close(entropy, spread)
    torch.testing.assert_close(gradient, logits.grad)


@pytest.mark.usefixtures("one_rank")
def test_a_vocabulary_without_padding_is_not_copied() -> None:
    logits = torch.randn(1, 2, COLUMNS)
    assert hide_padding(logits, own_rows=COLUMNS) is logits
