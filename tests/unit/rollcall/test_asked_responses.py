"""What `Trainer.generate` takes, before anything is asked of a rollout."""

import pytest

from rollcall import RollcallError
from rollcall.asked_responses import AskedResponses


@pytest.mark.parametrize(
    ("given", "wanted"),
    [(["</answer>", "b"], ("</answer>", "b")), ("</answer>", ("</answer>",)), (None, ())],
)
def test_one_text_that_ends_a_response_is_no_list_of_letters(
    given: list[str] | str | None, wanted: tuple[str, ...]
) -> None:
    asked = AskedResponses([[1]], 1, stop=given, stop_token_ids=None, top_k=None)
    sampling = asked.message(1).sampling
    assert (sampling.stop, sampling.stop_token_ids, sampling.top_k) == (wanted, (), 0)


def test_a_prompt_without_a_token_is_named() -> None:
    with pytest.raises(RollcallError, match="generate: prompt 1 is empty; begin it with a token"):
        AskedResponses([[1], []], 1)
    with pytest.raises(RollcallError, match="prompt 0 is not a list of token ids; tokenize it"):
        AskedResponses(["text"], 1)  # type: ignore[list-item]
