"""Opens the model that a job names: built in, a directory, or an id of the Hugging Face hub.

The hub's own library resolves an id and keeps the cache; it heeds HF_HOME, HF_HUB_CACHE,
HF_HUB_OFFLINE, HF_ENDPOINT and HF_TOKEN.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from rollcall_runtime.models.builtin_model import KIND, builtin_directory, builtin_source
from rollcall_runtime.models.json_file import read_json_object
from rollcall_runtime.models.model_source import FIELD
from rollcall_runtime.worker.contained_files import problem_of_file, root_of
from rollcall_runtime.worker.errors import SpecError

if TYPE_CHECKING:
    from rollcall_runtime.models.model_source import ModelSource

CONFIG_FILE = "config.json"
# What a model consists of: weights, configuration, tokenizer, chat template.
_FILES = ("*.safetensors", "*.json", "*.jinja", "*.txt", "*.model")
_NAME = r"[A-Za-z0-9][-A-Za-z0-9._]*"
_ID = re.compile(rf"({_NAME}(?:/{_NAME})?)(?:@([-A-Za-z0-9._/]+))?")


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
    check_files(directory)
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


def check_files(directory: Path) -> None:
    """SpecError names a file of a model that is none, or a link that leads out of its directory."""
    root = root_of(directory)
    for pattern in _FILES:
        for path in directory.glob(pattern):
            try:
                problem = problem_of_file(path, root)
            except OSError as error:
                problem = f"'{path}' cannot be read: {error}"
            if problem:
                raise SpecError(FIELD, problem)


def is_hub_id(path: str) -> bool:
    """Whether `path` has the form of an id, alone or with a revision after an @."""
    return _ID.fullmatch(path) is not None


def fetch_model(path: str) -> Path:
    """The directory in the cache with the model's files, downloaded as far as they are missing.

    Processes of one machine wait for each other's downloads. SpecError if there is no such model or
    revision, if access is refused, or if it is not in the cache and HF_HUB_OFFLINE is set. OSError
    if the hub does not answer.
    """
    # The hub's library is needed for ids alone.
    from huggingface_hub import constants, snapshot_download  # noqa: PLC0415
    from huggingface_hub.errors import (  # noqa: PLC0415
        GatedRepoError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    found = _ID.fullmatch(path)
    if found is None:
        raise SpecError(FIELD, f"{path!r} is not an id such as owner/name or owner/name@revision")
    name, revision = found.groups()
    try:
        directory = snapshot_download(
            name,
            revision=revision,
            allow_patterns=list(_FILES),
            # Else a revision that is a commit is looked up online.
            local_files_only=constants.HF_HUB_OFFLINE,
        )
    except GatedRepoError as error:
        problem = f"{path!r} is gated; accept its terms and give the pods a token in HF_TOKEN"
        raise SpecError(FIELD, problem) from error
    except RepositoryNotFoundError as error:
        problem = f"the hub has no model {name!r}, or it is private and HF_TOKEN has no access"
        raise SpecError(FIELD, problem) from error
    except RevisionNotFoundError as error:
        raise SpecError(FIELD, f"the model {name!r} has no revision {revision!r}") from error
    except HFValidationError as error:
        raise SpecError(FIELD, f"{path!r} is no id: {error}") from error
    except LocalEntryNotFoundError as error:
        if not constants.HF_HUB_OFFLINE:
            raise
        problem = f"{path!r} is not, or not whole, in the cache {constants.HF_HUB_CACHE}"
        advice = "unset HF_HUB_OFFLINE, or mount a cache or a directory that holds it"
        raise SpecError(FIELD, f"{problem}, and HF_HUB_OFFLINE is set; {advice}") from error
    return Path(directory)
