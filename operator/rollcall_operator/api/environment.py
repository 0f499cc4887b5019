"""What answers a response between its turns."""

from typing import Annotated, ClassVar

from pydantic import Field

from rollcall_operator.api.rolloutpool import EngineConfig
from rollcall_operator.api.rules import Model, Rule
from rollcall_operator.api.scalars import matches

CallableName = Annotated[
    str,
    Field(min_length=1, max_length=512),
    matches(
        "^[A-Za-z_][A-Za-z0-9_]*([.][A-Za-z_][A-Za-z0-9_]*)*:[A-Za-z_][A-Za-z0-9_]*$",
        "must be module:name, such as my_package.games:Chess",
    ),
]


class EnvironmentSpec(Model):
    """An environment that answers the model between turns, in a process beside each rollout."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            message="must have exactly one of function and tools",
            cel="has(self.function) != has(self.tools)",
            holds=lambda v: (v.function is None) != (v.tools is None),
        ),
        # Without CEL: it cannot see objects of unknown fields, as `config` is.
        Rule(
            message="must be empty with tools, which take no settings",
            holds=lambda v: v.tools is None or not v.config,
            path=".config",
        ),
    )

    function: CallableName | None = None
    """module:class that the rollout containers can import. An object of it is made for each sample,
    with the methods reset and step."""
    config: EngineConfig
    """Arguments of the class, by name."""
    tools: Annotated[list[CallableName], Field(min_length=1, max_length=64)] | None = None
    """In place of function: functions that the model calls by <tool_call> in its responses."""
    max_turns: Annotated[int, Field(ge=1, le=1024)] = 8
    """Most turns of a response that the model samples."""
    step_seconds: Annotated[int, Field(ge=1, le=3600)] = 30
    """Longest time of one call of reset or step. A call that takes longer is ended with its
    process, and its sample counts as spec.reward.onError says."""
