"""What a watcher of a job prints beside its progress."""

from hack.demo.job_progress import JobProgress, Pace


def running(step: int) -> JobProgress:
    return JobProgress(phase="Running", step=step, max_steps=40)


def test_the_pace_is_that_since_the_first_step_that_was_seen() -> None:
    pace = Pace()
    assert pace.words(running(0), now=0) == ""  # set-up is no step
    assert pace.words(running(2), now=100) == ""
    assert pace.words(running(2), now=130) == ""
    assert pace.words(running(12), now=160) == "  10.0 steps/min, 3 min left"
    assert pace.words(running(32), now=280) == "  10.0 steps/min, 48 s left"


def test_a_job_that_does_not_run_has_no_pace() -> None:
    pace = Pace()
    pace.words(running(1), now=0)
    assert pace.words(JobProgress(phase="Suspended", step=9, max_steps=40), now=60) == ""
