"""Prompts by number: the same number is always the same prompt."""

from pathlib import Path

import pytest

from rollcall_runtime.tasks.prompt_source import open_prompts
from rollcall_runtime.worker.errors import SpecError


def written(tmp_path: Path, text: str) -> str:
    path = tmp_path / "prompts.jsonl"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_the_built_in_prompts_depend_on_seed_and_number_alone() -> None:
    source, again = (open_prompts("builtin:reverse", seed=7) for _ in range(2))
    other = open_prompts("builtin:reverse", seed=8)
    numbers = range(50)
    assert [source.prompt(i) for i in numbers] == [again.prompt(i) for i in reversed(numbers)][::-1]
    assert [source.prompt(i) for i in numbers] != [other.prompt(i) for i in numbers]
    assert len({source.prompt(i) for i in numbers}) > 45


def test_a_file_is_read_over_and_over_in_a_new_order_each_time(tmp_path: Path) -> None:
    lines = "".join(f'{{"tokens": [{i}, 9], "note": "kept out"}}\n\n' for i in range(8))
    source = open_prompts(written(tmp_path, lines), seed=1)
    first = [source.prompt(i) for i in range(8)]
    second = [source.prompt(i) for i in range(8, 16)]
    assert sorted(first) == sorted(second) == [(i, 9) for i in range(8)]
    assert first != second
    assert source.prompt(3) == first[3]


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        ("builtin:sort", "unknown 'builtin:sort'; built in: builtin:reverse"),
        ("gsm8k", "neither built in .* nor a .jsonl file"),
        ("/nowhere/prompts.jsonl", "cannot read '/nowhere/prompts.jsonl': .*is it mounted"),
    ],
)
def test_a_source_that_does_not_exist_is_refused(prompts: str, message: str) -> None:
    with pytest.raises(SpecError, match=f"^spec.data.prompts: .*{message}"):
        open_prompts(prompts, seed=0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"tokens": [1]}\n{oops\n', "jsonl:2: not JSON"),
        ('{"prompt": "hi"}\n', "jsonl:1: wants"),
        ('{"tokens": []}\n', "jsonl:1: wants"),
        ('{"tokens": [1, true]}\n', "jsonl:1: wants"),
        ('{"tokens": [-1]}\n', "jsonl:1: wants"),
        ("[1, 2]\n", "jsonl:1: wants"),
        ("\n", "holds no prompt"),
    ],
)
def test_the_line_that_is_wrong_is_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(SpecError, match=f"^spec.data.prompts: .*{message}"):
        open_prompts(written(tmp_path, text), seed=0)
