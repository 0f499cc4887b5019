"""Opens the model that a job names: built in, a directory, or an id of the Hugging Face hub."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rollcall_runtime.models.builtin_model import KIND, builtin_directory, builtin_source
from rollcall_runtime.models.hub import fetch_model, is_hub_id
from rollcall_runtime.models.json_file import read_json_object
from rollcall_runtime.models.model_source import FIELD
from rollcall_runtime.worker.errors import SpecError

if TYPE_CHECKING:
    from rollcall_runtime.models.model_source import ModelSource

CONFIG_FILE = "config.json"


def open_model(path: str) -> ModelSource:
    """The model that `path` names.

    `builtin:...`; else a directory in this container; else `owner/name`, or `owner/name@revision`,
    of the Hugging Face hub, which is fetched into the hub's cache if it is not there yet. SpecError
    says which file of it is missing or wrong, and what to do. OSError if the hub does not answer.
    """
    if path.startswith("builtin:"):
        return builtin_source(path)
    directory = Path(path)
    if not directory.is_dir():
        if not is_hub_id(path):
            problem = f"{path!r} is neither builtin:..., nor a directory in this container"
            raise SpecError(FIELD, f"{problem}, nor an id such as owner/name; is it mounted?")
        directory = fetch_model(path)
    file = directory / CONFIG_FILE
    if not file.is_file():
        raise SpecError(FIELD, f"the directory '{directory}' has no {CONFIG_FILE}")
    values = read_json_object(file)
    if values.get("kind") == KIND:
        return builtin_directory(path, directory, values)
    if "model_type" not in values:
        problem = f"has neither a model_type of transformers nor the kind {KIND!r}"
        raise SpecError(FIELD, f"{file} {problem}, so it is no model's configuration")
    # transformers takes seconds to import, and the built-in decoder does not need it.
    from rollcall_runtime.models.hugging_face import hugging_face_directory  # noqa: PLC0415

    return hugging_face_directory(path, directory, values)
