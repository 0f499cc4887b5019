"""When a job is said to stand still, and when not."""

import math
import random
from collections.abc import Callable, Iterable, Mapping

import pytest

from rollcall_protocol.step_history import StepRow
from rollcall_protocol.wire.learning import LearningReport, LearningState
from rollcall_runtime.train.learning_judge import WINDOW, LearningJudge

Figures = dict[str, float]
ONE_PROMPT = [(0, 4, 1)]


def step(
    reward: float = 0.5,
    *,
    low: float | None = None,
    high: float | None = None,
    advantage: float = 0.8,
    **more: float,
) -> Figures:
    """A step of a job that learns; without `low` and `high` all of its samples are alike."""
    return {
        "reward/min": reward if low is None else low,
        "reward/mean": reward,
        "reward/max": reward if high is None else high,
        "advantage/nonzero": advantage,
        **more,
    }


def healthy(reward: float = 0.5) -> Figures:
    return step(reward, low=0.0, high=1.0)


def alike(reward: float) -> Figures:
    return step(reward, advantage=0.0)


def cut_off(reward: float, share: float = 1.0) -> Figures:
    return healthy(reward) | {"response_length/clip_ratio": share}


def mismatch(value: float) -> Figures:
    return healthy() | {"actor/mismatch_kl": value}


def judged(
    steps: Iterable[Mapping[str, float]],
    *,
    prompts: Callable[[int], Iterable[tuple[int, ...]]] = lambda number: [(number,), (0, number)],
    prompts_differ: bool = True,
) -> list[LearningReport | None]:
    """The report after each step."""
    judge, reports = LearningJudge(prompts_differ=prompts_differ), []
    for number, figures in enumerate(steps, start=1):
        judge.step_ended(number, figures, prompts(number))
        reports.append(judge.report)
    return reports


def states(reports: Iterable[LearningReport | None]) -> list[LearningState]:
    """Each once, when it begins."""
    found = [report.state for report in reports if report is not None]
    return [state for i, state in enumerate(found) if i == 0 or found[i - 1] is not state]


def last(reports: list[LearningReport | None]) -> LearningState:
    assert reports[-1] is not None
    return reports[-1].state


# --- rewards that are alike ---------------------------------------------------------------------


def test_nothing_is_said_of_a_job_that_has_just_started() -> None:
    assert judged([alike(0.0)] * (WINDOW - 1)) == [None] * (WINDOW - 1)


def test_samples_that_are_alike_in_every_step_teach_nothing() -> None:
    report = judged([alike(0.25)] * WINDOW)[-1]
    assert report == LearningReport(LearningState.REWARDS_ALIKE, 1, WINDOW, low=0.25, high=0.25)


def test_steps_that_are_alike_are_counted_until_one_is_not() -> None:
    judge, counts = LearningJudge(), []
    for number, figures in enumerate([alike(0.5)] * 3 + [healthy()] + [alike(0.0)] * 2, start=1):
        judge.step_ended(number, figures, ())
        counts.append(judge.steps_alike)
    assert counts == [1, 2, 3, 0, 1, 2]


def test_a_constant_reward_has_not_converged_because_its_mean_was_rounded() -> None:
    rounded = alike(0.1) | {"reward/mean": math.nextafter(0.1, 0)}
    assert last(judged([rounded, *[alike(0.1)] * WINDOW])) is LearningState.REWARDS_ALIKE


def test_one_sample_with_an_advantage_is_something_to_learn_from() -> None:
    steps = [alike(0.0)] * (WINDOW - 1) + [step(0.01, low=0.0, high=1.0, advantage=0.02)]
    assert last(judged(steps)) is LearningState.LEARNING


def test_groups_that_are_alike_each_for_itself_teach_nothing_either() -> None:
    hopeless_or_easy = step(0.5, low=0.0, high=1.0, advantage=0.0)
    assert last(judged([hopeless_or_easy] * WINDOW)) is LearningState.REWARDS_ALIKE


def test_a_job_whose_rewards_have_risen_to_the_top_has_converged() -> None:
    steps = [healthy(0.2)] * WINDOW + [alike(1.0)] * WINDOW
    assert states(judged(steps)) == [LearningState.LEARNING, LearningState.CONVERGED]


def test_the_top_is_the_highest_reward_that_the_job_has_seen() -> None:
    steps = [step(-8.0, low=-20.0, high=-2.0)] * WINDOW + [alike(-2.0)] * WINDOW
    assert last(judged(steps)) is LearningState.CONVERGED
    collapsed = [healthy(0.6)] * WINDOW + [alike(0.5)] * WINDOW
    assert last(judged(collapsed)) is LearningState.REWARDS_ALIKE


def test_what_was_said_stays_as_it_was_while_it_is_true() -> None:
    reports = judged([alike(0.0)] * 200)
    assert len(set(reports)) == 2


def test_a_lucky_sample_does_not_take_it_back_and_learning_does() -> None:
    lucky = [alike(0.0)] * WINDOW + [step(0.01, low=0.0, high=1.0)]
    assert last(judged(lucky)) is LearningState.REWARDS_ALIKE
    reports = judged([alike(0.0)] * WINDOW + [healthy()] * WINDOW)
    assert states(reports) == [LearningState.REWARDS_ALIKE, LearningState.LEARNING]
    assert reports[-2] == reports[WINDOW]


def test_steps_without_rewards_are_not_judged() -> None:
    assert set(judged([{"train/loss": 1.0, "train/grad_norm": 0.0}] * 100)) == {None}


# --- responses that are cut off -----------------------------------------------------------------


def test_responses_that_are_cut_off_and_earn_no_more_stand_still() -> None:
    report = judged([cut_off(0.2, 0.98)] * WINDOW)[-1]
    assert report is not None
    assert report.state is LearningState.RESPONSES_CUT_OFF
    assert report.share == pytest.approx(0.98)


def test_that_they_are_cut_off_comes_before_that_they_are_alike() -> None:
    steps = [alike(0.0) | {"response_length/clip_ratio": 1.0}] * WINDOW
    assert last(judged(steps)) is LearningState.RESPONSES_CUT_OFF


def test_a_job_whose_rewards_grow_may_cut_responses_off() -> None:
    assert last(judged(cut_off(0.02 * n) for n in range(WINDOW))) is LearningState.LEARNING


def test_some_long_responses_are_no_standstill() -> None:
    assert last(judged([cut_off(0.2, 0.9)] * WINDOW)) is LearningState.LEARNING


def test_right_answers_as_long_as_the_limit_are_no_standstill() -> None:
    steps = [cut_off(0.3 + 0.02 * n) for n in range(35)] + [cut_off(0.98)] * 100
    assert states(judged(steps)) == [LearningState.LEARNING]


def test_what_is_not_known_of_every_step_is_not_judged() -> None:
    steps = [cut_off(0.2), healthy(0.2)] * WINDOW
    assert last(judged(steps)) is LearningState.LEARNING


# --- a mismatch that grows ----------------------------------------------------------------------


def test_a_mismatch_that_has_grown_is_reported_with_what_it_was() -> None:
    steps = [mismatch(1e-3)] * WINDOW + [mismatch(0.02)] * WINDOW
    report = judged(steps)[-1]
    assert report is not None
    assert report.state is LearningState.MISMATCH_GROWS
    assert (report.low, report.high) == (1e-3, 0.0105)  # medians


@pytest.mark.parametrize(
    ("before", "after"), [(0.05, 0.2), (1e-8, 1e-3)], ids=["less than fivefold", "harmless"]
)
def test_a_mismatch_that_has_grown_little_is_usual(before: float, after: float) -> None:
    steps = [mismatch(before)] * WINDOW + [mismatch(after)] * WINDOW
    assert last(judged(steps)) is LearningState.LEARNING


def test_outliers_of_the_mismatch_are_usual() -> None:
    steps = [mismatch(5.0 if n % 3 == 0 else 1e-3) for n in range(100)]
    assert states(judged(steps)) == [LearningState.LEARNING]


def test_few_steps_with_a_mismatch_prove_nothing() -> None:
    later = [mismatch(1.0) if n % 4 == 0 else healthy() for n in range(WINDOW)]
    assert last(judged([mismatch(1e-3)] * WINDOW + later)) is LearningState.LEARNING


# --- one prompt ---------------------------------------------------------------------------------


def test_one_prompt_in_all_steps_is_a_standstill_whatever_it_earns() -> None:
    steps = [healthy()] * WINDOW
    assert last(judged(steps, prompts=lambda _: ONE_PROMPT)) is LearningState.PROMPT_REPEATED


def test_one_prompt_a_step_is_usual_if_it_is_another_one_each_time() -> None:
    reports = judged([healthy()] * WINDOW, prompts=lambda number: [(number,)])
    assert last(reports) is LearningState.LEARNING


def test_prompts_of_environments_and_agents_may_be_the_same() -> None:
    reports = judged([healthy()] * WINDOW, prompts=lambda _: ONE_PROMPT, prompts_differ=False)
    assert last(reports) is LearningState.LEARNING


# --- a trainer that restarts --------------------------------------------------------------------


def test_a_restarted_trainer_judges_as_if_it_had_run_on() -> None:
    steps = [healthy(0.2)] * WINDOW + [alike(1.0)] * 2 * WINDOW
    made_again = StepRow(len(steps) + 1, 0.0, healthy())
    restored = LearningJudge()
    history = [StepRow(n, 0.0, figures) for n, figures in enumerate(steps, start=1)]
    restored.restore([*history, *[made_again] * WINDOW], step=len(steps))
    assert restored.report == judged(steps)[-1]


# --- no false alarm -----------------------------------------------------------------------------


def random_walk(seed: int, steps: int = 400) -> list[Figures]:
    """A job that learns by and by: rewards in [0, 1], noise, outliers, long responses."""
    draw = random.Random(seed)
    reward, found, cut = draw.uniform(0.02, 0.3), [], draw.uniform(0.0, 0.6)
    base = 10 ** draw.uniform(-8, -2.5)
    for _ in range(steps):
        reward = min(0.97, max(0.01, reward + draw.gauss(0.002, 0.02)))
        cut = min(0.9, max(0.0, cut + draw.gauss(0, 0.05)))
        rare = draw.random() < 0.3
        figures = step(reward, low=0.0, high=1.0, advantage=0.0 if rare else draw.random())
        figures["response_length/clip_ratio"] = cut
        if draw.random() < 0.7:
            figures["actor/mismatch_kl"] = base * math.exp(draw.gauss(0, 1))
        found.append(figures)
    return found


@pytest.mark.parametrize("seed", range(50))
def test_a_job_that_learns_by_and_by_never_stands_still(seed: int) -> None:
    assert states(judged(random_walk(seed))) == [LearningState.LEARNING]
