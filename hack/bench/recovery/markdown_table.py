"""The trials as a table of Markdown, for docs/measurements.md."""

from collections.abc import Iterable, Mapping

from hack.bench.recovery.trial_statistics import TrialResult, breakdown, kept_up, summarize

# What is aimed at: median and 99th percentile, seconds.
GOALS: Mapping[str, tuple[float, float]] = {
    "kill_idle": (0.3, 1.0),
    "kill_stage": (0.3, 1.0),
    "stop_beyond_bound": (0.5, 1.0),
    "stall": (0.3, 1.0),
    "stall_kill": (0.3, 1.0),
    "stall_stop": (0.3, 1.0),
    "scale_up": (3.0, 6.0),
    "trainer_kill": (5.0, 10.0),
}
TITLES: Mapping[str, str] = {
    "kill_idle": "rollout killed, idle: survivors' session",
    "kill_idle_next_version": "the same: the next version serves",
    "kill_stage": "rollout killed in mid-STAGE: session, weights resent",
    "kill_stage_serves": "the same: all survivors serve them",
    "kill_commit": "rollout killed in mid-COMMIT",
    "stop": "rollout stopped: left out",
    "stop_beyond_bound": "the same, beyond `suspectAfterMilliseconds`",
    "stall": "longest step around any of these, beyond the usual one",
    "stall_kill": "of these, kills",
    "stall_stop": "of these, stops",
    "scale_up": "2 to 6: all in sync after the last container's start",
    "scale_up_in_all": "the same, after `kubectl scale`",
    "scale_up_limit": "beside the same job: four bare imports of PyTorch",
    "trainer_kill": "trainer killed: a step done after its container's start",
    "trainer_kill_in_all": "the same, after the kill",
    "join_cost": "four newcomers, processes up: catching up and joining",
    "naive_stop": "rollout hangs, naive policy: a step done",
}
PHASES = ("kill_idle", "kill_stage", "scale_up", "trainer_kill")


def table(records: Iterable[TrialResult]) -> str:
    """A row for each event that has figures, then the phases and the newcomers' cost."""
    records = list(records)
    lines = [
        "| event, to | trials | median | p99 | worst | goal: median, p99 |",
        "|---|---|---|---|---|---|",
    ]
    found = summarize(records)
    for event, title in TITLES.items():
        figures = found.get(event, {})
        if "median" not in figures:
            continue
        goal = ", ".join(f"{seconds:g}" for seconds in GOALS.get(event, ()))
        failed = f" ({figures['failed']:g} failed)" if "failed" in figures else ""
        seconds = " | ".join(f"{figures[key]:.2f}" for key in ("median", "p99", "worst"))
        lines.append(f"| {title} | {figures['n']:g}{failed} | {seconds} | {goal} |")
    for event in PHASES:
        spent = ", ".join(f"{k} {v:.2f}" for k, v in breakdown(records, event).items())
        if spent:
            lines.append(f"\n`{event}`, medians of its phases: {spent}")
    kept = kept_up(records)
    if kept is not None:
        lines.append(f"\n`join_cost`: the others kept {kept:.0%} of their token rate meanwhile")
    return "\n".join(lines).strip()
