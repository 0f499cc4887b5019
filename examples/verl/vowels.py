"""verl's reward: the share of an answer's letters that are vowels."""


def reward(solution_str: str, **_: object) -> float:
    """It gets data_source, ground_truth and extra_info, too."""
    return sum(letter in "aeiou" for letter in solution_str) / max(1, len(solution_str))
