"""The weight-transfer engine that vLLM's workers run: prepare beside serving, then commit.

The agent calls, through vLLM's own routes: start_weight_update; update_weights with `prepare`,
which returns at once, since a worker serves nothing while it handles a call; with `wait` once all
ranks have reported that they are prepared; pause; finish_weight_update; resume. A failure before
the finish leaves what serves untouched, and another `prepare` may follow.
"""

from __future__ import annotations

import logging
import threading
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from vllm.config import set_current_vllm_config
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)

from rollcall_plugins.inference.vllm.in_server import device_work
from rollcall_plugins.inference.vllm.in_server.shadow_model import ShadowModel
from rollcall_plugins.inference.vllm.in_server.staged_file import read

if TYPE_CHECKING:
    from typing import Any

log = logging.getLogger(__name__)


@dataclass
class InitInfo(WeightTransferInitInfo):  # type: ignore[misc,unused-ignore]
    """Nothing: the weights come with each update."""


@dataclass
class UpdateInfo(WeightTransferUpdateInfo):  # type: ignore[misc,unused-ignore]
    """`action`: prepare or wait. `seconds`: how long `wait` waits.

    For prepare, `path` is that of the staged file. In the folder `reports`, if it is named, each
    rank leaves a file of its number when it is done: empty, or with what failed.
    """

    action: str
    path: str = ""
    reports: str = ""
    seconds: float = 0.0


class LoadedOtherwiseError(RuntimeError):
    """What vLLM has loaded is not what it was given."""


class StagedWeightTransfer(
    WeightTransferEngine[InitInfo, UpdateInfo]  # type: ignore[misc,unused-ignore]
):
    """See the module. One update at a time."""

    init_info_cls = InitInfo
    update_info_cls = UpdateInfo
    supports_draft_weight_update = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._thread: threading.Thread | None = None
        self._prepared: ShadowModel | None = None
        self._error: BaseException | None = None
        self._compared = False  # whether an update's weights were loaded as they came

    def init_transfer_engine(self, init_info: InitInfo) -> None:
        """Nothing to do: each update names the file that it reads."""

    def start_weight_update(self) -> None:
        """Begin an update; what an earlier one prepared is discarded."""
        self._discard()

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """One action; see UpdateInfo. The base class would wait for an accelerator."""
        self.receive_weights(self.parse_update_info(update_info))

    def receive_weights(self, update_info: UpdateInfo) -> None:
        """ValueError for an unknown action; for `wait`, what preparing raised, or TimeoutError."""
        action = update_info.action
        if action == "prepare":
            self._discard()
            self._thread = threading.Thread(
                target=self._prepare,
                args=(update_info.path, update_info.reports),
                name="prepare",
                daemon=True,
            )
            self._thread.start()
        elif action == "wait":
            self._wait(update_info.seconds)
        else:
            raise ValueError(f"update_info.action is {action!r}: prepare or wait")

    def finish_weight_update(self) -> None:
        """Serve what was prepared. RuntimeError if nothing is."""
        prepared, self._prepared = self._prepared, None
        if prepared is None or self._running:
            raise RuntimeError("no weights are prepared")
        prepared.commit()
        device_work.finish(self.device)  # before what was prepared is freed
        # In a thread, since requests are paused until this returns.
        self._thread = threading.Thread(target=prepared.free, name="free", daemon=True)
        self._thread.start()

    def shutdown(self) -> None:
        """Free what is prepared."""
        self._discard()

    @property
    def _running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _prepare(self, path: str, reports: str) -> None:
        began = time.monotonic()
        try:
            with device_work.beside_others(self.device), set_current_vllm_config(self.vllm_config):
                staged = read(path, self.device)
                shadow = ShadowModel(self.model, self.model_config)
                shadow.load(staged.tensors)
            self._compare(shadow.agrees, staged.version)
            del staged  # once the device's work has read it
            self._prepared = shadow
        except BaseException as error:  # noqa: BLE001 - `wait` raises it
            log.warning("weights cannot be prepared: %s", traceback.format_exc())
            self._error = error.with_traceback(None)  # its frames hold weights
        log.info("prepared weights in %.3f s", time.monotonic() - began)
        if reports:
            failed = self._error
            self._report(Path(reports), f"{type(failed).__name__}: {failed}" if failed else "")

    def _compare(self, agrees: bool, version: int) -> None:
        """LoadedOtherwiseError if the loaders have changed weights that they did not change before.

        Some models' loaders do so always, and those of a rank that loads a part.
        """
        if self._compared and not agrees:
            problem = f"vLLM's loaders put other numbers into the model than version {version} has"
            raise LoadedOtherwiseError(f"{problem}; the versions before were loaded as they came")
        if agrees and not self._compared:
            log.info("each version is compared with what vLLM loads of it")
        self._compared = agrees

    def _report(self, folder: Path, problem: str) -> None:
        rank = self.vllm_config.parallel_config.rank
        try:
            scratch = folder / f".{rank}"
            scratch.touch()
            with suppress(OSError):  # a full disk still takes the name, and `wait` says the problem
                scratch.write_text(problem)
            scratch.rename(folder / str(rank))
        except OSError as error:  # the agent's deadline passes
            log.warning("cannot report that weights are prepared: %s", error)

    def _wait(self, seconds: float) -> None:
        if self._thread is not None:
            self._thread.join(seconds)
        if self._running:
            raise TimeoutError(f"the weights were not prepared within {seconds:g} s")
        if self._error is not None:
            raise self._error
        if self._prepared is None:
            raise RuntimeError("no weights are prepared")

    def _discard(self) -> None:
        if self._thread is not None:
            self._thread.join()  # bounded by the size of the weights: it copies or frees memory
        if self._prepared is not None:
            self._prepared.free()
        self._thread = self._prepared = self._error = None
