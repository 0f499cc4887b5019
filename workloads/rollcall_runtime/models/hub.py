"""Fetches a model from the Hugging Face hub, or finds it in the hub's cache.

The hub's own library resolves the id and keeps the cache; it heeds HF_HOME, HF_HUB_CACHE,
HF_HUB_OFFLINE, HF_ENDPOINT and HF_TOKEN.
"""

import re
from pathlib import Path

from rollcall_runtime.models.model_source import FIELD
from rollcall_runtime.worker.errors import SpecError

# What a model consists of: weights, configuration, tokenizer, chat template.
_FILES = ("*.safetensors", "*.json", "*.jinja", "*.txt", "*.model")
_NAME = r"[A-Za-z0-9][-A-Za-z0-9._]*"
_ID = re.compile(rf"({_NAME}(?:/{_NAME})?)(?:@([-A-Za-z0-9._/]+))?")


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
            local_files_only=constants.is_offline_mode(),
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
        if not constants.is_offline_mode():
            raise
        problem = f"{path!r} is not, or not whole, in the cache {constants.HF_HUB_CACHE}"
        advice = "unset HF_HUB_OFFLINE, or mount a cache or a directory that holds it"
        raise SpecError(FIELD, f"{problem}, and HF_HUB_OFFLINE is set; {advice}") from error
    return Path(directory)
