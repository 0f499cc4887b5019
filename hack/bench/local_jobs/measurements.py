"""What is measured of one run, in its order."""

import statistics
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hack.bench.local_jobs import alternating_trainer
from hack.bench.local_jobs.child_programs import Took, answer, bare_imports
from hack.bench.local_jobs.local_run import JOB, TRAINER, LocalRun, manifests
from hack.bench.recovery.worker_log import LoggedSession, LoggedStep
from hack.bench.spreads import spread, spreads

FEW, MANY = 2, 6
WARM_UP, REST = 20, 10  # steps
COUNTED_STEPS, ANSWERS, KILLS = 100, 5, 3
RECORDED = "0.05"  # share of the responses
RECORDING_STEPS, RECORDING_SECONDS = 2200, 900.0
Trial = dict[str, float]
Say = Callable[[str], None]


def one_round(home: Path, *, say: Say) -> dict[str, list[Trial]]:
    """A run from its start to its end; each measurement's trials."""
    imports = asdict(bare_imports(1 + FEW))
    say(f"{1 + FEW} bare imports of torch: {imports['seconds']:.2f} s")
    with LocalRun(home, manifests({})) as run:
        found = {"imports_at_start": [imports], "start_to_first_step": [_start(run)]}
        say(f"start to first step: {found['start_to_first_step'][0]['seconds']:.2f} s")
        run.until(LoggedStep, lambda step: step.number >= WARM_UP)
        found["steps"] = [_steps(run)]
        say(f"steps a minute: {found['steps'][0]['a_minute']:.0f}")
        found["status"] = [asdict(_answer(run, "local", "status", JOB)) for _ in range(ANSWERS)]
        check = ("check", "--manifests-only", JOB)
        found["check"] = [asdict(_answer(run, *check)) for _ in range(ANSWERS)]
        say(f"status: {_median(found['status'])} s, check: {_median(found['check'])} s")
        _rest(run)
        found["imports_beside"] = [asdict(bare_imports(MANY - FEW))]
        _rest(run)
        found["scale_up"] = [_scale_up(run)]
        _rest(run)
        say(
            f"{FEW} to {MANY} rollouts: {_median(found['scale_up'])} s after their start; "
            f"{MANY - FEW} imports beside the job: {_median(found['imports_beside'])} s"
        )
        found["kill_of_a_rollout"] = [_kill_of_a_rollout(run) for _ in range(KILLS)]
        say(f"kill of a rollout: {_median(found['kill_of_a_rollout'])} s")
        found["kill_of_the_trainer"] = [_kill_of_the_trainer(run)]
        say(f"kill of the trainer: {_median(found['kill_of_the_trainer'])} s")
    return found


def recording(home: Path, *, say: Say) -> dict[str, list[Trial]]:
    """A run that records 5 % of its responses, in every second block of steps."""
    program = [sys.executable, "-m", alternating_trainer.__name__]
    with LocalRun(home, manifests({"samples": {"share": RECORDED}}, program)) as run:
        run.until(
            LoggedStep,
            lambda step: step.number >= WARM_UP + RECORDING_STEPS,
            seconds=RECORDING_SECONDS,
            look_seconds=10.0,  # a look at so long a log takes time from the job
        )
        ended = {step.number: step.at for step in run.logged(LoggedStep)}
    found = alternating_trainer.ratios({n: at for n, at in ended.items() if n >= WARM_UP})
    trial = {"blocks": float(len(found)), "ratio": statistics.median(found)}
    say(f"steps a minute with {RECORDED} recorded: {trial['ratio']:.3f} of those without")
    return {"recording": [trial]}


def figures(rounds: list[dict[str, list[Trial]]]) -> dict[str, Any]:
    """Of each measurement's numbers the median, the least and the most; ratios within a round."""
    trials: dict[str, list[Trial]] = {}
    for each in rounds:
        for name, its in each.items():
            trials.setdefault(name, []).extend(its)
    found: dict[str, Any] = {name: spreads(its) for name, its in trials.items()}
    for name, beside in (
        ("start_to_first_step", "imports_at_start"),
        ("scale_up", "imports_beside"),
    ):
        ratios = [each[name][0]["seconds"] / each[beside][0]["seconds"] for each in rounds]
        found[name]["ratio"] = spread(ratios)
    return found


def _start(run: LocalRun) -> Trial:
    """From the command to the end of the trainer's first step."""
    first = run.until(LoggedStep, lambda step: step.number == 1)
    return {"seconds": first.at - run.began, "cpu_seconds": run.cpu_seconds()}


def _steps(run: LocalRun) -> Trial:
    """With FEW rollouts, and checkpoints."""
    first, before = list(run.logged(LoggedStep))[-1], run.cpu_seconds()
    last = run.until(LoggedStep, lambda step: step.number >= first.number + COUNTED_STEPS)
    count = last.number - first.number
    return {
        "a_minute": 60 * count / (last.at - first.at),
        "cpu_seconds_each": (run.cpu_seconds() - before) / count,
    }


def _answer(run: LocalRun, *words: str) -> Took:
    return answer(["-m", "rollcall_cli.main", *words], run.environment)


def _scale_up(run: LocalRun) -> Trial:
    """From the start of the newcomers' last process until the session has all rollouts."""
    before, used = run.rollouts(), run.cpu_seconds()
    run.scale(MANY)
    whole = run.until(LoggedSession, lambda session: session.members == 1 + MANY)
    starts = [run.started(uid) for uid in run.rollouts().keys() - before.keys()]
    return {
        "seconds": whole.at - max(starts),
        "starts_apart": max(starts) - min(starts),
        "cpu_seconds": run.cpu_seconds() - used,
    }


def _kill_of_a_rollout(run: LocalRun) -> Trial:
    """Until the others have a session; then it is replaced."""
    victim, used = next(iter(run.rollouts().values())), run.cpu_seconds()
    at = run.kill(victim)
    others = run.until(LoggedSession, lambda s: s.at > at and s.members == MANY)
    cpu_seconds = run.cpu_seconds() - used
    run.until(LoggedSession, lambda s: s.at > others.at and s.members == 1 + MANY)
    _rest(run)
    return {"seconds": others.at - at, "cpu_seconds": cpu_seconds}


def _kill_of_the_trainer(run: LocalRun) -> Trial:
    """Until its successor has made a step."""
    old, used = run.trainers(), run.cpu_seconds()
    at = run.kill(TRAINER)
    step = run.until(LoggedStep, lambda _: True, without=old)
    return {"seconds": step.at - at, "cpu_seconds": run.cpu_seconds() - used}


def _rest(run: LocalRun) -> None:
    """Some steps, so that nothing of the measurement before is left."""
    last = list(run.logged(LoggedStep))[-1]
    run.until(LoggedStep, lambda step: step.number >= last.number + REST)


def _median(trials: list[Trial]) -> str:
    return f"{statistics.median(trial['seconds'] for trial in trials):.2f}"
