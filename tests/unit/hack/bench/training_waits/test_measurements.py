"""What pairs of jobs become, and that their jobs can be run on one machine."""

import os
from pathlib import Path

import pytest
import yaml

from hack.bench.training_waits.measurements import MEANS, Comparison, comparisons, means
from hack.docs.stored_runs import RUNS, Figure, at, read
from rollcall_local.manifests import read as read_manifests
from rollcall_protocol.step_history import StepRow


def rows(count: int, **changes: float) -> list[StepRow]:
    return [
        StepRow(step, 0.0, {name: float(step) for name in MEANS} | {"reward/mean": 0.5} | changes)
        for step in range(1, count + 1)
    ]


RUN = means(rows(9), first=3, steps=5) | {"cores": 1.0}
PAIRS = [(RUN, RUN | {"visible_wait": 2.0}), (RUN, RUN | {"visible_wait": 3.0})]


def test_means_are_those_of_the_steps_that_count() -> None:
    assert RUN["timing_s/step"] == 6.0
    assert RUN["visible_wait"] == 12.0, "the copy, and the wait for a version to be published"
    assert RUN["reward"] == 0.5


def test_a_step_without_its_times_is_an_error() -> None:
    with pytest.raises(ValueError, match="5 of 6 steps"):
        means(rows(8), first=3, steps=6)
    cut = [*rows(5), StepRow(6, 0.0, {"reward/mean": 0.5}), *rows(9)[6:]]
    with pytest.raises(ValueError, match="have their times"):
        means(cut, first=3, steps=5)


def test_ratios_are_within_a_pair() -> None:
    found = comparisons()["blocking"].figures(PAIRS)
    assert found["ratio"] == {"median": 5.0, "min": 4.0, "max": 6.0}


@pytest.mark.parametrize(
    ("compared", "differs"),
    [
        (comparisons()["blocking"], "blocking"),
        (comparisons()["staleness"], "maxStaleness"),
    ],
)
def test_the_jobs_of_a_pair_differ_in_one_setting_and_can_be_run(
    tmp_path: Path, compared: Comparison, differs: str
) -> None:
    texts = []
    for number, each in enumerate(compared.documents):
        file = tmp_path / f"{number}.yaml"
        file.write_text(yaml.safe_dump_all(each))
        read_manifests([file], [], images={}, user=os.getuid())
        texts.append(file.read_text().splitlines())
    unequal = [pair for pair in zip(*texts, strict=True) if pair[0] != pair[1]]
    assert [line.split(":")[0].strip() for line, _ in unequal] == [differs]


@pytest.mark.parametrize("figure", read(RUNS / "training-waits.json").figures, ids=lambda f: f.name)
def test_each_figure_of_the_page_is_measured(figure: Figure) -> None:
    found = {name: compared.figures(PAIRS) for name, compared in comparisons().items()}
    assert all(at(found, path) is not None for path in figure.paths)
