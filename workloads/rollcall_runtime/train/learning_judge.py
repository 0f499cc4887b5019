"""Whether a policy gets anywhere, judged by the figures of its latest steps."""

import math
import statistics
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rollcall_protocol.step_history import StepRow
from rollcall_protocol.wire.learning import LearningReport, LearningState

WINDOW = 20
"""Steps that are judged together. Where one sample in a thousand earns something, and a step has 64
samples, 20 steps without any are as likely as not; with one in a hundred they are one in 400,000.
"""
CUT_OFF_SHARE = 0.95  # of the window's responses; long answers to some prompts are usual
NEAR = 0.05  # of the way from the lowest reward of a step to the highest of a sample
GROWN, MISMATCH_FLOOR = 5.0, 0.01  # times the start's; nats a token, below which it does no harm
BEYOND_CHANCE = 2.0  # standard errors

ADVANTAGES, CUT_OFF = "advantage/nonzero", "response_length/clip_ratio"
REWARDS = ("reward/min", "reward/mean", "reward/max")
MISMATCH = "actor/mismatch_kl"

Prompt = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Step:
    """`prompt`: the only one that the step's samples answer, None if there are several."""

    number: int
    figures: Mapping[str, float]
    prompt: Prompt | None


class LearningJudge:
    """Takes steps in their order. `report` is the newest judgement, None before WINDOW steps.

    `steps_alike` is the number of newest steps in a row in which no sample had an advantage.

    What it says stays until the steps have said something else WINDOW times in a row, unless it is
    LEARNING: a lucky sample must not take it back and give it again. `prompts_differ`: whether one
    prompt for all is a fault; with environments and agents what follows it differs.
    """

    def __init__(self, *, prompts_differ: bool = True) -> None:
        self._prompts_differ = prompts_differ
        self.report: LearningReport | None = None
        self._steps: deque[_Step] = deque(maxlen=WINDOW)
        self.steps_alike = 0
        self._otherwise = 0  # steps in a row that do not say what `report` says
        self._lowest, self._highest = math.inf, -math.inf
        self._first_mismatches: list[float] = []

    def restore(self, history: Iterable[StepRow], *, step: int) -> None:
        """Take the steps of earlier processes up to `step`, after which training goes on.

        Their prompts are not known any more.
        """
        for row in history:
            if row.step <= step:
                self.step_ended(row.step, row.figures, ())

    def step_ended(
        self, number: int, figures: Mapping[str, float], prompts: Iterable[Prompt]
    ) -> None:
        """Take a step: `figures` as `step_figures` gives them, and the tokens of its prompts."""
        if not all(name in figures for name in REWARDS):
            return
        self.steps_alike = self.steps_alike + 1 if figures.get(ADVANTAGES) == 0 else 0
        different = set(prompts) if self._prompts_differ else set()
        self._steps.append(_Step(number, figures, different.pop() if len(different) == 1 else None))
        self._lowest = min(self._lowest, figures["reward/mean"])
        self._highest = max(self._highest, figures["reward/max"])
        if MISMATCH in figures and len(self._first_mismatches) < WINDOW:
            self._first_mismatches.append(figures[MISMATCH])
        if len(self._steps) == WINDOW:
            self._take(self._judgement())

    def _take(self, found: LearningReport) -> None:
        shown = self.report
        same = shown is not None and shown.state is found.state
        self._otherwise = 0 if same else self._otherwise + 1
        waits = shown is not None and shown.state is not LearningState.LEARNING
        if not same and not (waits and self._otherwise < WINDOW):
            self.report, self._otherwise = found, 0

    def _judgement(self) -> LearningReport:
        """The cause comes before what follows from it."""
        steps, share = self._steps, self._share_cut_off()
        low = min(step.figures["reward/min"] for step in steps)
        high = max(step.figures["reward/max"] for step in steps)
        state, mismatch = LearningState.LEARNING, self._grown_mismatch()
        if steps[0].prompt is not None and len({step.prompt for step in steps}) == 1:
            state = LearningState.PROMPT_REPEATED
        elif share >= CUT_OFF_SHARE and not self._grows() and not self._solved:
            state = LearningState.RESPONSES_CUT_OFF
        elif all(step.figures.get(ADVANTAGES) == 0 for step in steps):
            converged = self._near_highest
            state = LearningState.CONVERGED if converged else LearningState.REWARDS_ALIKE
        elif mismatch is not None:
            state, (low, high) = LearningState.MISMATCH_GROWS, mismatch
        return LearningReport(state, steps[0].number, steps[-1].number, low, high, share)

    def _share_cut_off(self) -> float:
        """Of the window's responses; 0 where it is not known of every step."""
        shares = [step.figures[CUT_OFF] for step in self._steps if CUT_OFF in step.figures]
        return statistics.fmean(shares) if len(shares) == len(self._steps) else 0.0

    @property
    def _means(self) -> Sequence[float]:
        return [step.figures["reward/mean"] for step in self._steps]

    @property
    def _near_highest(self) -> bool:
        """Whether rewards are what they were at best, and were lower once."""
        if math.isclose(self._lowest, self._highest, abs_tol=1e-9):
            return False  # a mean of equal numbers may be another one by rounding
        near = self._highest - NEAR * (self._highest - self._lowest)
        return statistics.fmean(self._means) >= near

    @property
    def _solved(self) -> bool:
        """By the usual scale, on which 1 is a right answer.

        A task whose right answers are as long as the limit is no standstill; below that scale it
        cannot be told from answers that would earn more if they were longer.
        """
        return self._near_highest and statistics.fmean(self._means) >= 1 - NEAR

    def _grows(self) -> bool:
        """Whether rewards are higher in the window's second half, beyond chance."""
        means, half = self._means, WINDOW // 2
        parts = means[:half], means[half:]
        error = math.sqrt(sum(statistics.variance(part) / half for part in parts))
        before, after = map(statistics.fmean, parts)
        return after - before > BEYOND_CHANCE * error

    def _grown_mismatch(self) -> tuple[float, float] | None:
        """Medians of the job's first steps and of the latest; outliers are usual. None: not grown.

        Steps whose samples are all older have none.
        """
        latest = [step.figures[MISMATCH] for step in self._steps if MISMATCH in step.figures]
        if len(latest) < WINDOW // 2 or len(self._first_mismatches) < WINDOW:
            return None
        before, now = statistics.median(self._first_mismatches), statistics.median(latest)
        return (before, now) if now >= max(MISMATCH_FLOOR, GROWN * before) else None
