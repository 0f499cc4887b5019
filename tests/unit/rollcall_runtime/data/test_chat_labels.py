"""Which tokens of a chat are learnt: those that the assistant writes, its end token included."""

from typing import Any

import pytest

from rollcall_runtime.data.chat_labels import label_chat
from rollcall_runtime.worker.errors import SpecError
from tests.process.engines.tiny_models import CHAT_TEMPLATE as CHATML
from tests.unit.rollcall_runtime.data.character_tokenizer import (
    MARKED,
    THINKING,
    character_model,
    trimming_model,
)


def chat(*turns: str) -> list[dict[str, Any]]:
    """Turns of user and assistant in their order."""
    roles = ["user", "assistant"] * len(turns)
    return [{"role": r, "content": c} for r, c in zip(roles, turns, strict=False)]


def learnt(
    template: str, turns: list[dict[str, Any]], *, first: int = 0, trimming: bool = False
) -> list[str]:
    """The runs of text that are learnt."""
    model = trimming_model(template) if trimming else character_model(template)
    tokens, marks = label_chat(turns, model=model, first=first, place="p.jsonl:1", field="spec.x")
    assert len(tokens) == len(marks)
    runs: list[list[int]] = []
    for position, (token, mark) in enumerate(zip(tokens, marks, strict=True)):
        if mark and not (position and marks[position - 1]):
            runs.append([])
        if mark:
            runs[-1].append(token)
    return [model.tokenizer.decode(run, special=True) for run in runs]


def test_every_turn_of_the_assistant_is_learnt_up_to_its_end_token() -> None:
    found = learnt(CHATML, chat("hi", "hello", "and you?", "fine"))
    assert found == ["hello<|im_end|>", "fine<|im_end|>"]


def test_an_end_token_inside_a_turn_of_the_user_ends_nothing() -> None:
    assert learnt(CHATML, chat("a<|im_end|>b", "yes")) == ["yes<|im_end|>"]


def test_the_tokens_are_those_of_the_whole_chat() -> None:
    model = character_model()
    turns = chat("hi", "hello")
    tokens, _ = label_chat(turns, model=model, place="p", field="f")
    assert tokens == model.tokenizer.chat_tokens(turns, answer_follows=False)


def test_a_turn_that_the_template_writes_in_another_way_later_is_read_and_not_learnt() -> None:
    assert learnt(THINKING, chat("hi", "hello", "and you?", "fine")) == [
        "<think></think>fine<|im_end|>"
    ]


def test_marks_in_the_template_decide() -> None:
    assert learnt(MARKED, chat("hi", "hello", "and you?", "fine")) == [
        "hello<|im_end|>",
        "fine<|im_end|>",
    ]


def test_a_turn_of_weight_0_is_read_and_not_learnt() -> None:
    turns = chat("hi", "hello", "and you?", "fine")
    turns[1]["weight"], turns[3]["weight"] = 0, 1
    assert learnt(CHATML, turns) == ["fine<|im_end|>"]
    with pytest.raises(SpecError, match=r"p.jsonl:1: .* marks what is learnt, and a message has w"):
        learnt(MARKED, turns)
    turns[1]["weight"] = 0.5
    with pytest.raises(SpecError, match=r"p.jsonl:1: a message has the weight 0.5; write 0 for"):
        learnt(CHATML, turns)


@pytest.mark.parametrize("template", [CHATML, MARKED])
def test_turns_of_the_prompt_are_not_learnt(template: str) -> None:
    assert learnt(template, chat("hi", "hello", "and you?", "fine"), first=3) == ["fine<|im_end|>"]


def test_a_chat_without_a_turn_of_the_assistant_is_refused() -> None:
    with pytest.raises(SpecError, match=r"^spec.x: p.jsonl:1: there is no turn of the assistant"):
        learnt(CHATML, chat("hi"))


def test_a_template_that_opens_an_answer_as_it_never_writes_one_is_refused() -> None:
    opening = CHATML.replace("<|im_start|>assistant", "<|im_start|>assistant<think>")
    with pytest.raises(SpecError, match=r"or mark it by {% generation %} in the template"):
        learnt(opening, chat("hi", "hello"))


@pytest.mark.parametrize("trimming", [False, True])
@pytest.mark.parametrize("template", [CHATML, MARKED])
def test_spaces_at_the_edges_of_a_turn_are_learnt_with_it_alone(
    template: str, *, trimming: bool
) -> None:
    turns = chat("hi ", "hello ", " and you?", " fine")
    assert learnt(template, turns, trimming=trimming) == ["hello <|im_end|>", " fine<|im_end|>"]


def test_a_greeting_before_the_first_user_is_read_and_not_learnt() -> None:
    greeting = {"role": "assistant", "content": "welcome"}
    assert learnt(CHATML, [greeting, *chat("hi", "hello")]) == ["hello<|im_end|>"]
    with pytest.raises(SpecError, match=r"there is no turn of the assistant to learn"):
        learnt(CHATML, [greeting])
