"""Messages between a program that joins as a rollout, by the library, and its agent's process.

Lines as `library_link` has them. Received weights lie in memory that the agent shares.
"""

import typing
from dataclasses import dataclass

from rollcall_protocol.wire.library_link import CancelRequest
from rollcall_protocol.wire.weight_manifest import WeightManifest


@dataclass(frozen=True, slots=True)
class SharedWeights:
    """Version number `version`, in the file at `path`, as `manifest` describes it.

    The file stays as it is until the program releases `hold`.
    """

    hold: int
    version: int
    manifest: WeightManifest
    path: str


# --- program -> agent ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TakeWeights:
    """The newest weights, as soon as their version is `at_least`. Answer: WeightsTaken."""

    request: int
    at_least: int


@dataclass(frozen=True, slots=True)
class WeightsApplied:
    """The program's function has returned from the weights of `hold`, or raised `error`."""

    hold: int
    error: str = ""


@dataclass(frozen=True, slots=True)
class ReleaseWeights:
    """The program has no tensor any more of the weights that came with `hold`."""

    hold: int


ProgramMessage = TakeWeights | WeightsApplied | ReleaseWeights | CancelRequest

# --- agent -> program ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AgentReady:
    """The agent is set up, and goes on to register."""


@dataclass(frozen=True, slots=True)
class WeightsTaken:
    """These are the newest weights; the program releases them."""

    request: int
    weights: SharedWeights


@dataclass(frozen=True, slots=True)
class ApplyWeights:
    """These are committed once the program's function has them; the program releases them."""

    weights: SharedWeights


AgentMessage = AgentReady | WeightsTaken | ApplyWeights

PROGRAM_MESSAGES: tuple[type[ProgramMessage], ...] = typing.get_args(ProgramMessage)
AGENT_MESSAGES: tuple[type[AgentMessage], ...] = typing.get_args(AgentMessage)
