"""Numbered prompts that show what a first letter is, with the answer in their row."""

from rollcall_runtime.tasks import first_letter


def test_a_row_depends_on_seed_and_number_alone() -> None:
    rows = [first_letter.row(number, seed=3) for number in range(50)]
    assert rows == [first_letter.row(number, seed=3) for number in range(50)]
    assert rows != [first_letter.row(number, seed=4) for number in range(50)]
    assert len({row["word"] for row in rows}) > 20


def test_the_answer_is_the_first_letter_of_the_word_after_the_examples() -> None:
    for number in range(50):
        row = first_letter.row(number, seed=0)
        assert row["prompt"] == f"cat: c\nhouse: h\n{row['word']}:"
        assert row["answer"] == row["word"][0]


def test_every_word_comes_and_is_made_of_small_letters() -> None:
    words = {first_letter.row(number, seed=0)["word"] for number in range(5000)}
    assert words == set(first_letter.WORDS)
    assert len(words) == len(first_letter.WORDS)
    assert all(word.isascii() and word.isalpha() and word.islower() for word in words)
