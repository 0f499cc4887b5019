"""An environment of tools: functions that the model calls in its responses.

A call is written as Hermes and Qwen models are trained to (https://github.com/NousResearch/
Hermes-Function-Calling): `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`. The results
follow as messages of the role `tool`.
"""

import asyncio
import inspect
import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rollcall_runtime.tasks.environments.environment_plugin import EnvironmentPlugin
from rollcall_runtime.tasks.environments.user_environment import FIELD, EnvironmentMaker
from rollcall_runtime.tasks.reward_text import open_decoder
from rollcall_runtime.tasks.user_code import definition, import_callable
from rollcall_runtime.worker.errors import SpecError

MAX_RESULT = 2**14  # characters; the rest of a longer result is cut off
MAX_CALLS = 16  # in one turn; further ones are not made
_CALL = re.compile(r"<tool_call>\s*(.*?)\s*</tool_call>", re.DOTALL)

Tools = Mapping[str, Callable[..., Any]]


class ToolEnvironment:
    """Calls the tools that a turn names; a turn without a call ends the response.

    What a tool raises, and a call that cannot be made, is a result that the model reads.
    """

    def __init__(self, tools: Tools) -> None:
        self._tools = tools

    def reset(self) -> None:
        """Begin without an observation: prompts say which tools there are."""

    def step(self, response_text: str) -> tuple[list[dict[str, str]] | None, float, bool]:
        """The results of the calls, in their order."""
        calls = _CALL.findall(response_text)[:MAX_CALLS]
        if not calls:
            return None, 0.0, True
        return [{"role": "tool", "content": self._result(call)} for call in calls], 0.0, False

    def _result(self, call: str) -> str:
        try:
            tool, arguments = self._read(call)
            result = tool(**arguments)
            if inspect.isawaitable(result):
                result = asyncio.run(_awaited(result))
            text = result if isinstance(result, str) else json.dumps(result)
        except Exception as error:  # noqa: BLE001 - the tools are the user's, the call the model's
            text = f"error: {type(error).__name__}: {error}"
        # The model may write half of a surrogate pair, and get it back.
        return text[:MAX_RESULT].encode(errors="replace").decode()

    def _read(self, call: str) -> tuple[Callable[..., Any], dict[str, Any]]:
        """The tool and its arguments; ValueError for what is no call."""
        value = json.loads(call)
        name = value.get("name") if isinstance(value, dict) else None
        arguments = value.get("arguments", {}) if isinstance(value, dict) else None
        if not isinstance(name, str) or not isinstance(arguments, dict):
            raise ValueError('a call is {"name": ..., "arguments": {...}}')  # noqa: TRY004 - of text
        if name not in self._tools:
            raise ValueError(f"there is no tool {name!r}; there are {', '.join(self._tools)}")
        return self._tools[name], arguments


def load_tools(functions: Sequence[str], *, directory: Path | None) -> EnvironmentMaker:
    """An environment of the functions "module:name"; `directory` has the model's tokenizer.

    SpecError names the field of one that cannot be imported, or that has the name of another.
    """
    tools: dict[str, Callable[..., Any]] = {}
    for number, function in enumerate(functions):
        field = f"{FIELD}.tools[{number}]"
        name = function.rpartition(":")[2].rpartition(".")[2]
        if name in tools:
            raise SpecError(field, f"another tool has the name {name!r} too")
        tools[name] = import_callable(function, field)
    decode = open_decoder(directory, field=f"{FIELD}.tools")
    place = definition(next(iter(tools.values())))
    # <tool_call> is a special token of some tokenizers.
    return EnvironmentMaker(lambda: ToolEnvironment(tools), decode, *place, keep_special=True)


class ToolEnvironments(EnvironmentPlugin):
    """Environments that answer the calls of tools, which are functions of the job's."""

    def load(self, functions: Sequence[str], *, directory: Path | None) -> EnvironmentMaker:
        return load_tools(functions, directory=directory)


async def _awaited(value: Awaitable[Any]) -> Any:
    return await value
