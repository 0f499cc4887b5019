"""Says which columns of a source nothing reads, so that no name that is mistyped stays unseen."""

from __future__ import annotations

import logging
from functools import cache
from typing import TYPE_CHECKING

from rollcall_runtime.data.row_kind import RowKind
from rollcall_runtime.data.templated_rows import template_columns
from rollcall_runtime.data.tools import TOOLS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rollcall_protocol.data_config import DataSource
    from rollcall_runtime.data.checked_column import CheckedColumn
    from rollcall_runtime.data.model_input import ModelInput

log = logging.getLogger(__name__)


def name_unread(
    source: DataSource,
    column: CheckedColumn,
    read: Sequence[str],
    *,
    model: ModelInput,
    field: str,
) -> None:
    """Log the columns of `source` that are not `read`, nor by its template or the model's."""
    used = {column.name, *read, *template_columns(source.template)}
    if TOOLS in column.columns and column.kind is RowKind.CHAT:
        if TOOLS in str(model.tokenizer.library.chat_template):
            used.add(TOOLS)
        else:
            problem = f"the model's chat template does not write the tools of {source.name}"
            _say_once(f"{field}: {problem}")
    unread = sorted(set(column.columns) - used)
    if unread:
        _say_once(f"{field}: nothing reads the columns {', '.join(unread)} of {source.name}")


def name_preferences(source: DataSource, columns: Sequence[str], field: str) -> None:
    """Log that `source` has answers to choose between: a job reads its prompts alone."""
    if {"chosen", "rejected"} <= set(columns):
        problem = f"{source.name} has preferences (the columns chosen and rejected)"
        _say_once(f"{field}: {problem}; its prompts alone are read, and the reward decides")


@cache
def _say_once(message: str) -> None:
    """A trainer opens its data several times."""
    log.warning(message)
