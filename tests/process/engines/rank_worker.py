"""One rank of an engine under test: runs in a process of its own and does what the tests ask.

A request is a JSON object with a command, which is a method of RankWorker, and its arguments; the
reply is a JSON object with its value, or its error. Tensors travel in safetensors files.
"""

from __future__ import annotations

import json
import os
import threading
import traceback
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file, save_file

from rollcall_protocol.job_config import OptimizerConfig
from rollcall_protocol.train_settings import EngineSettings
from rollcall_runtime.train.process_group import TrainerProcessGroup, TrainerRendezvous
from rollcall_runtime.train.train_engine import EngineSetup, TrainEngine, train_engines
from rollcall_runtime.worker.devices import own_device
from rollcall_runtime.worker.errors import SpecError
from tests.process.engines import memory
from tests.process.engines.stand_ins import stand_in
from tests.process.engines.suite_batches import Rows
from tests.process.engines.suite_losses import LOSSES
from tests.process.engines.weight_transfer import WeightSender

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from torch import Tensor

SEED = 3
_COLLECTIVE_SECONDS = 30.0  # how long a rank waits for another one


@dataclass(frozen=True, slots=True)
class RankPlace:
    """Which rank a process is, of which engine, and where it may write."""

    engine: str
    stand_in: str
    rank: int
    world: int
    port: int
    folder: Path


def serve(place: RankPlace, requests: Connection) -> None:
    """What a rank's process runs: answer requests until the other end closes."""
    os.environ.update(own_device(place.rank, os.environ))
    with ExitStack() as undo:
        if place.stand_in:
            undo.enter_context(stand_in(place.stand_in))
        meeting = TrainerRendezvous(
            host="127.0.0.1",
            port=place.port,
            rank=place.rank,
            size=place.world,
            secret="of the suite",
            timeout=_COLLECTIVE_SECONDS,
        )
        ranks = TrainerProcessGroup(meeting)
        undo.callback(ranks.close)
        worker = RankWorker(place, ranks)
        while True:
            try:
                request = requests.recv_bytes()
            except EOFError:
                return
            requests.send_bytes(_answer(worker, json.loads(request)))


def _answer(worker: RankWorker, request: dict[str, Any]) -> bytes:
    try:
        value = getattr(worker, request["command"])(**request["arguments"])
    except Exception as error:  # noqa: BLE001 - the tester raises it again
        found = {
            "type": type(error).__name__,
            "message": str(error),
            "field": error.field if isinstance(error, SpecError) else "",
            "trace": traceback.format_exc(),
        }
        return json.dumps({"error": found}).encode()
    return json.dumps({"value": value}).encode()


class RankWorker:
    """The commands. Tensors that one returns are in the file whose path it returns."""

    def __init__(self, place: RankPlace, ranks: TrainerProcessGroup) -> None:
        self._place, self._ranks = place, ranks
        self._engines: dict[str, TrainEngine] = {}
        self._sender: WeightSender | None = None
        self._files = 0

    # --- the engine itself -----------------------------------------------------------------------

    def describe(self) -> dict[str, Any]:
        """What the engine says of itself; "reason" is why it cannot be used here, or empty."""
        try:
            kind = train_engines.get(self._place.engine)
        except SpecError as error:
            return {"reason": error.problem}
        return {
            "reason": "",
            "settings": sorted(kind.settings_known),
            "heads": sorted(kind.heads),
            "devices": sorted(kind.devices),
            "device": self._ranks.device.type,
        }

    def open(
        self,
        *,
        model: str,
        settings: dict[str, Any],
        head: str = "language-model",
        optimizer: str = "adamw",
        learning_rate: float | None = None,
        temperature: float = 1.0,
        name: str = "main",
    ) -> None:
        """Make an engine; `learning_rate` None: without optimizer."""
        setup = EngineSetup(
            model=model,
            ranks=self._ranks,
            optimizer=None if learning_rate is None else OptimizerConfig(optimizer, learning_rate),
            head=head,  # type: ignore[arg-type]
            settings=EngineSettings(**settings),
            seed=SEED,
            temperature=temperature,
        )
        engine = train_engines.get(self._place.engine)(setup)
        self._engines[name] = engine
        engine.initialize()

    def place(self, *, name: str = "main") -> dict[str, Any]:
        """Which rows this rank computes, and whether it holds what the model gives for them."""
        engine = self._engines[name]
        return {
            "data_parallel_rank": engine.data_parallel_rank,
            "data_parallel_size": engine.data_parallel_size,
            "holds_outputs": engine.holds_outputs,
        }

    def close(self) -> None:
        """Close all engines that are open, the newest first."""
        if self._sender is not None:
            self._sender.close()
            self._sender = None
        while self._engines:
            self._engines.popitem()[1].close()

    # --- training --------------------------------------------------------------------------------

    def forward_backward(
        self, *, rows: dict[str, int], loss: str = "token mean", name: str = "main"
    ) -> dict[str, Any]:
        """Add the gradients over all ranks' share of `rows`."""
        with self._engines[name].train_mode():
            result = self._engines[name].forward_backward(self._share(rows, name), LOSSES[loss])
        return asdict(result)

    def optimizer_step(self, *, name: str = "main") -> dict[str, Any]:
        """Apply the gradients."""
        return asdict(self._engines[name].optimizer_step())

    def zero_grad(self, *, name: str = "main") -> None:
        """Forget the gradients."""
        self._engines[name].zero_grad()

    def learning_rate(self, *, name: str = "main") -> float:
        """Of the next step."""
        return self._engines[name].learning_rate

    def forward(self, *, rows: dict[str, int], name: str = "main") -> str:
        """What the head gives for this rank's share of `rows`; of a language model entropy too."""
        engine = self._engines[name]
        batch = self._share(rows, name)
        with engine.eval_mode():
            output = engine.forward(batch, entropy=engine.setup.head == "language-model")
        tensors = {field: getattr(output, field) for field in output.__slots__}
        return self._keep({field: t for field, t in tensors.items() if t is not None})

    def to(self, *, device: str, name: str = "main", **parts: bool) -> None:
        """Move the engine's state."""
        self._engines[name].to(device, **parts)  # type: ignore[arg-type]

    def threads(self) -> int:
        """Threads of this process, torch's own among them."""
        return len(list(Path("/proc/self/task").iterdir()))

    def allocated(self) -> int:
        """Bytes of the accelerator's memory that tensors take."""
        return memory.allocated(self._ranks.device)

    def kept_for_backward(self, *, rows: dict[str, int], name: str = "main") -> int:
        """Bytes that one forward pass keeps for its backward pass."""
        engine = self._engines[name]
        with memory.kept_for_backward() as kept, engine.train_mode():
            loss = memory.LossThatLooks(LOSSES["token mean"], kept)
            engine.forward_backward(self._share(rows, name), loss)
        engine.zero_grad()
        return loss.bytes_kept

    # --- weights ---------------------------------------------------------------------------------

    def weight_info(self, *, name: str = "main") -> list[Any]:
        """Name, dtype and shape of what `weights` gives."""
        return [
            (info.name, str(info.dtype), list(info.shape))
            for info in self._engines[name].weight_info()
        ]

    def weights(self, *, name: str = "main") -> dict[str, Any]:
        """Whole tensors; "order": their names as the engine gave them."""
        found = {n: t.detach().clone() for n, t in self._engines[name].named_weights()}
        return {"order": list(found), "file": self._keep(found)}

    def weight_shards(self, *, name: str = "main") -> dict[str, Any]:
        """What this rank sends; "places": name, whole shape and first row of each piece."""
        tensors: dict[str, Tensor] = {}
        places: list[tuple[str, list[int], int]] = []
        for shard in self._engines[name].weight_shards():
            tensors[str(len(places))] = shard.tensor.detach().clone()
            places.append((shard.info.name, list(shard.info.shape), shard.start))
        return {"places": places, "file": self._keep(tensors)}

    def load_weights(self, *, file: str, name: str = "main") -> None:
        """Take the tensors of a file, which rank 0 alone reads."""
        weights = load_file(file) if self._place.rank == 0 else None
        self._engines[name].load_weights(weights)

    # --- checkpoints -----------------------------------------------------------------------------

    def save_checkpoint(self, *, path: str, state: dict[str, Any], name: str = "main") -> None:
        """Write a checkpoint."""
        self._engines[name].save_checkpoint(Path(path), state=state)

    def save_beside_training(self, *, path: str, rows: dict[str, int]) -> dict[str, Any]:
        """Write a checkpoint in a thread while the engine makes a step, which is returned."""
        write = self._engines["main"].prepare_checkpoint(Path(path), state={})
        errors: list[BaseException] = []

        def run() -> None:
            try:
                write()
            except BaseException as error:  # noqa: BLE001 - raised below
                errors.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        result = self.forward_backward(rows=rows)
        self.optimizer_step()
        thread.join(60)
        if thread.is_alive():
            raise TimeoutError("the checkpoint is not written after 60 s")
        if errors:
            raise errors[0]
        return result

    def load_checkpoint(self, *, path: str, name: str = "main") -> dict[str, Any]:
        """Continue from a checkpoint; returns the state saved with it."""
        return self._engines[name].load_checkpoint(Path(path))

    def random_numbers(self, *, seed: int | None = None) -> list[float]:
        """The next ones of torch's generator, which `seed` sets to a state of this rank's own."""
        if seed is not None:
            torch.manual_seed(seed + self._place.rank)
        return [float(number) for number in torch.rand(4)]

    # --- weight sync -----------------------------------------------------------------------------

    def open_sender(self, *, transport: str, config: dict[str, Any], sharded: bool) -> Any:
        """Take a snapshot, of this rank's shards or (rank 0) of all, and open a sync engine."""
        self._sender = WeightSender(self._engines["main"], rank=self._place.rank, sharded=sharded)
        return self._sender.open(transport, config)

    def publish(self, *, seats: list[Any], manifest: Any, senders: int) -> None:
        """Send the snapshot to the receivers among `seats`."""
        if self._sender is None:
            raise RuntimeError("open_sender comes first")
        self._sender.publish(seats=seats, manifest=manifest, senders=senders)

    # --- what the commands share -----------------------------------------------------------------

    def _share(self, rows: dict[str, int], name: str) -> Any:
        engine = self._engines[name]
        return Rows(**rows).share(engine.data_parallel_rank, engine.data_parallel_size)

    def _keep(self, tensors: dict[str, Tensor]) -> str:
        """Write tensors to a new file. Safetensors refuses shared memory, hence the copies."""
        self._files += 1
        path = self._place.folder / f"{self._place.rank}-{self._files}.safetensors"
        save_file({n: t.detach().cpu().contiguous().clone() for n, t in tensors.items()}, path)
        return str(path)


torch.set_num_threads(1)
