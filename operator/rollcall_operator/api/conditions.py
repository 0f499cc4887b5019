"""Condition types, reasons, event reasons and phases: constants that users may rely on."""

from enum import StrEnum


class JobCondition(StrEnum):
    """Conditions of an RLJob."""

    VALIDATED = "Validated"
    SUSPENDED = "Suspended"
    TRAINER_READY = "TrainerReady"
    TRAINER_UP_TO_DATE = "TrainerUpToDate"
    ROLLOUTS_READY = "RolloutsReady"
    COORDINATOR_CONNECTED = "CoordinatorConnected"
    REFERENCE_READY = "ReferenceReady"
    FRONT_READY = "FrontReady"
    WEIGHTS_IN_SYNC = "WeightsInSync"
    REWARDS_USABLE = "RewardsUsable"
    LEARNING = "Learning"
    NETWORK_POLICIES_ENFORCED = "NetworkPoliciesEnforced"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


class PoolCondition(StrEnum):
    """Conditions of a RolloutPool."""

    JOB_FOUND = "JobFound"
    VALIDATED = "Validated"
    READY = "Ready"


class JobPhase(StrEnum):
    """Summary of a job's conditions in one word."""

    PENDING = "Pending"
    SUSPENDED = "Suspended"
    STARTING = "Starting"
    RUNNING = "Running"
    RESTARTING = "Restarting"
    UNKNOWN = "Unknown"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


class SyncGroupPhase(StrEnum):
    """Whether a sync group has a session that matches the roster."""

    FORMING = "Forming"
    REBUILDING = "Rebuilding"
    STABLE = "Stable"


class Reason(StrEnum):
    """Reasons of conditions."""

    # Validated
    VALID = "Valid"
    INVALID_SPEC = "InvalidSpec"
    # whole jobs
    SUSPENDED = "Suspended"
    NOT_SUSPENDED = "NotSuspended"
    FINISHED = "Finished"
    COMPLETED = "Completed"
    BAD_CONFIG = "BadConfig"
    EXIT_CODE_RULE = "ExitCodeRule"
    BACKOFF_LIMIT_EXCEEDED = "BackoffLimitExceeded"
    DEADLINE_EXCEEDED = "DeadlineExceeded"
    TRAINING_FAILED = "TrainingFailed"
    # pods
    READY = "Ready"
    STARTING = "Starting"
    RESTARTING = "Restarting"
    IMAGE_PULL_FAILED = "ImagePullFailed"
    CANNOT_START = "CannotStart"
    CRASH_LOOP = "CrashLoop"
    OUT_OF_MEMORY = "OutOfMemory"
    UNSCHEDULABLE = "Unschedulable"
    MOUNT_FAILED = "MountFailed"
    PODS_REFUSED = "PodsRefused"
    UP_TO_DATE = "UpToDate"
    RESTART_NEEDED = "RestartNeeded"
    # the operator's connection to the coordinator
    CONNECTED = "Connected"
    COORDINATOR_UNREACHABLE = "CoordinatorUnreachable"
    COORDINATOR_SILENT = "CoordinatorSilent"
    COORDINATOR_REFUSES = "CoordinatorRefuses"
    COORDINATOR_INCOMPATIBLE = "CoordinatorIncompatible"
    COORDINATOR_UNTRUSTED = "CoordinatorUntrusted"
    COORDINATOR_SENDS_TOO_MUCH = "CoordinatorSendsTooMuch"
    # weights and training
    IN_SYNC = "InSync"
    CATCHING_UP = "CatchingUp"
    REBUILDING = "Rebuilding"
    SESSIONS_KEEP_ENDING = "SessionsKeepEnding"
    NO_COORDINATOR = "NoCoordinator"
    NO_ROLLOUTS = "NoRollouts"
    SYNC_DISABLED = "SyncDisabled"
    TRAINING = "Training"
    WAITING_FOR_TRAINER = "WaitingForTrainer"
    WAITING_FOR_REFERENCE = "WaitingForReference"
    TOO_FEW_ROLLOUTS = "TooFewRollouts"
    # rewards
    REWARDS_USABLE = "RewardsUsable"
    REWARD_RAISED = "RewardRaised"
    REWARD_NOT_FINITE = "RewardNotFinite"
    REWARD_NOT_A_NUMBER = "RewardNotANumber"
    REWARD_TOO_LARGE = "RewardTooLarge"
    REWARD_TIMED_OUT = "RewardTimedOut"
    REWARD_PROCESS_DIED = "RewardProcessDied"
    ENVIRONMENT_FAILED = "EnvironmentFailed"
    # whether training gets anywhere
    LEARNING = "Learning"
    CONVERGED = "Converged"
    REWARDS_ALIKE = "RewardsAlike"
    RESPONSES_CUT_OFF = "ResponsesCutOff"
    MISMATCH_GROWS = "MismatchGrows"
    PROMPT_REPEATED = "PromptRepeated"
    # network policies
    ENFORCED = "Enforced"
    NOT_ENFORCED = "NotEnforced"
    NETWORK_POLICIES_DISABLED = "NetworkPoliciesDisabled"
    # pools
    JOB_FOUND = "JobFound"
    JOB_NOT_FOUND = "JobNotFound"


PROBLEM_REASONS = frozenset(
    {
        Reason.INVALID_SPEC,
        Reason.BAD_CONFIG,
        Reason.RESTARTING,
        Reason.IMAGE_PULL_FAILED,
        Reason.CANNOT_START,
        Reason.CRASH_LOOP,
        Reason.OUT_OF_MEMORY,
        Reason.UNSCHEDULABLE,
        Reason.MOUNT_FAILED,
        Reason.PODS_REFUSED,
        Reason.RESTART_NEEDED,
        Reason.COORDINATOR_UNREACHABLE,
        Reason.COORDINATOR_SILENT,
        Reason.COORDINATOR_REFUSES,
        Reason.COORDINATOR_INCOMPATIBLE,
        Reason.COORDINATOR_UNTRUSTED,
        Reason.COORDINATOR_SENDS_TOO_MUCH,
        Reason.SESSIONS_KEEP_ENDING,
        Reason.REWARD_RAISED,
        Reason.REWARD_NOT_FINITE,
        Reason.REWARD_NOT_A_NUMBER,
        Reason.REWARD_TOO_LARGE,
        Reason.REWARD_TIMED_OUT,
        Reason.REWARD_PROCESS_DIED,
        Reason.ENVIRONMENT_FAILED,
        Reason.REWARDS_ALIKE,
        Reason.RESPONSES_CUT_OFF,
        Reason.MISMATCH_GROWS,
        Reason.PROMPT_REPEATED,
        Reason.NOT_ENFORCED,
        Reason.JOB_NOT_FOUND,
    }
)
"""Reasons that need a person; the others pass by themselves. Each is a Warning event too."""


class EventReason(StrEnum):
    """Reasons that only events have. Events also use the reasons of conditions: PROBLEM_REASONS,
    SUSPENDED, those for which training pauses, those of Learning, and those that a job ends with.
    """

    RUNNING = "Running"
    RESUMED = "Resumed"
    EPOCH_OPENED = "EpochOpened"
    SESSION_REBUILT = "SessionRebuilt"
    ROLLOUT_MOVED = "RolloutMoved"
    ROLLOUT_REPLACED = "RolloutReplaced"
    TRAINER_NODE_TERMINATING = "TrainerNodeTerminating"
    TRAINER_FORCE_DELETED = "TrainerForceDeleted"
    TRAINER_RESTARTED = "TrainerRestarted"
    CHILDREN_ADOPTED = "ChildrenAdopted"
