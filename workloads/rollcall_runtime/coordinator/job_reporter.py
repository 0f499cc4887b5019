"""Builds the job snapshot for the operator: members, sessions, progress and result."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from rollcall_protocol.job_config import CoordinatorConfig
from rollcall_protocol.membership.coordinator_effects import (
    CloseStream,
    CoordinatorEffect,
    MemberSuspected,
    SessionFormed,
    VersionPublished,
)
from rollcall_protocol.wire.job_snapshot import (
    JobSnapshot,
    MemberReport,
    MemberState,
    TrainingProgress,
    TrainingResult,
)
from rollcall_protocol.wire.learning import LearningReport
from rollcall_protocol.wire.reward_errors import RewardFailure
from rollcall_runtime.coordinator.persistent_state import CoordinatorState
from rollcall_runtime.coordinator.sync_group_driver import SyncGroup


class JobReporter:
    """Gathers the state of `groups` and of training for each snapshot."""

    def __init__(self, config: CoordinatorConfig, groups: Mapping[str, SyncGroup]) -> None:
        self._config, self._groups = config, groups
        self._progress = TrainingProgress(0, config.max_steps, 0, None)
        self._finished: TrainingResult | None = None
        self._states: list[MemberState] = []  # at the last publication

    def record_progress(
        self,
        *,
        step: int,
        number: int,
        reward: float | None,
        warning: str,
        learning: LearningReport | None,
        steps_alike: int = 0,
    ) -> None:
        """Training has done `step` steps; version `number` is published."""
        most = self._config.max_steps
        self._progress = TrainingProgress(
            *(step, most, number, reward),
            warning=warning,
            learning=learning,
            steps_alike=steps_alike,
        )

    def record_result(self, step: int, error: str) -> None:
        """Training ended after `step`; `error` is empty, or says why it failed."""
        self._finished = TrainingResult(step, error)

    @property
    def training(self) -> bool:
        """Whether samples are wanted: training goes on, and minRollouts are in session."""
        return self._finished is None and not self._paused()

    def snapshot(
        self,
        state: CoordinatorState,
        running: Mapping[str, int],
        reward_failure: RewardFailure | None,
    ) -> JobSnapshot:
        """The whole state; `running` is the number of leased prompts by pod uid."""
        roster = state.roster
        return JobSnapshot(
            pod_uid=state.pod_uid,
            boot=state.boot,
            roster_epoch=roster.epoch if roster else 0,
            roster_digest=roster.digest if roster else "",
            members=tuple(
                replace(member, running=running.get(member.pod_uid, 0))
                for member in self._members()
            ),
            progress=replace(self._progress, paused=self._paused()),
            finished=self._finished,
            groups=tuple(group.report() for group in self._groups.values()),
            reward_failure=reward_failure,
        )

    def urgent(self, effects: Iterable[CoordinatorEffect]) -> bool:
        """Whether to report now: a session or suspect changed, or which members are in sync."""
        happened = list(effects)
        if any(
            isinstance(effect, (SessionFormed, CloseStream, MemberSuspected)) for effect in happened
        ):
            return True
        if not any(isinstance(effect, VersionPublished) for effect in happened):
            return False
        before, self._states = self._states, [report.state for report in self._members()]
        return before != self._states

    def _members(self) -> tuple[MemberReport, ...]:
        found = [report for group in self._groups.values() for report in group.machine.reports()]
        return tuple(sorted(found, key=lambda report: report.pod))

    def _paused(self) -> str:
        least = self._config.membership.min_rollouts
        live = sum(len(group.machine.seated) for group in self._groups.values())
        return "" if live >= least else f"{live} rollouts in session, minRollouts is {least}"
