"""Files of models and data, settings and code that others wrote, as a worker's programs read them.

Each is opened by `rollcall-train data`, a process beside the job that reads what a trainer reads.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hack.attacks.attack import attack, expect
from rollcall_operator.plan.children.pod_template import variable
from tests.process.engines.tiny_models import write_tiny_model
from tests.unit.rollcall_local.kubelet import kubelet_expansion

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hack.attacks.target import AttackedJob

BAD_CONFIG = 64
MOST_BYTES = 6 << 30  # of address space, most of which torch takes
SECONDS, PROCESSOR_SECONDS = 400.0, 60  # a machine may be busy with much else
MODEL = "builtin:reverse-tiny"
_PROGRAM = "import sys; from rollcall_runtime.cli import train; sys.exit(train(sys.argv[1:]))"


def refused(model: object, rows: object, *, names: str) -> None:
    """NotRefusedError unless opening both ends with 64 and one message that `names` the fault.

    A terminal answers yes to whatever it is asked.
    """
    theirs, ours = os.openpty()
    os.write(theirs, b"y\n" * 8)
    limited = f'ulimit -v {MOST_BYTES >> 10}; ulimit -t {PROCESSOR_SECONDS}; exec "$@"'
    program = [sys.executable, "-c", _PROGRAM, "data", "--model", str(model), str(rows)]
    try:
        done = subprocess.run(
            ["/bin/sh", "-c", limited, "sh", *program],
            stdin=ours,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        expect(False, f"{rows} was read for more than {SECONDS:g} s")
        return
    finally:
        os.close(ours)
        os.close(theirs)
    said = done.stderr[-500:]
    expect(done.returncode == BAD_CONFIG, f"exit code {done.returncode}, not {BAD_CONFIG}: {said}")
    expect(names in done.stderr and "Traceback" not in done.stderr, f"no clear message: {said}")


async def each(cases: Callable[[Path], Iterator[tuple[object, object, str]]]) -> None:
    """Open model and rows of each case, one after the other, beside the job."""

    def run() -> None:
        with tempfile.TemporaryDirectory(prefix="rollcall-files-") as folder:
            for model, rows, names in cases(Path(folder)):
                refused(model, rows, names=names)

    await asyncio.to_thread(run)


@attack("author of files", seconds=1700.0)
async def rows_without_end(job: AttackedJob) -> None:
    """A pipe, a device, a line and a gzip of GBs in place of rows: 64, in bounded memory."""

    def cases(folder: Path) -> Iterator[tuple[object, object, str]]:
        os.mkfifo(folder / "pipe.jsonl")
        yield MODEL, folder / "pipe.jsonl", "is no file but a pipe"
        (folder / "zero.csv").symlink_to("/dev/zero")
        yield MODEL, folder / "zero.csv", "is no file but a pipe"
        with (folder / "line.jsonl").open("wb") as file:
            file.truncate(8 << 30)
        yield MODEL, folder / "line.jsonl", "the line has more than"
        with gzip.open(folder / "bomb.jsonl.gz", "wb", compresslevel=1) as packed:
            for _ in range(300):
                packed.write(b"\n" * (1 << 20))
        yield MODEL, folder / "bomb.jsonl.gz", "unpacks to more than"

    await each(cases)


@attack("author of files", seconds=1700.0)
async def parquet_that_repeats_a_value(job: AttackedJob) -> None:
    """A Parquet file of some KB that unpacks to GBs: 64, in bounded memory."""

    def cases(folder: Path) -> Iterator[tuple[object, object, str]]:
        import pyarrow as pa  # noqa: PLC0415 - this attack alone needs it
        from pyarrow import parquet  # noqa: PLC0415

        table = pa.table({"prompt": ["x" * 1000] * 1000})
        with parquet.ParquetWriter(folder / "rows.parquet", table.schema) as writer:
            writer.write_table(pa.concat_tables([table] * 2000).combine_chunks())
        yield MODEL, folder / "rows.parquet", "unpacks to more than"

    await each(cases)


@attack("author of files", seconds=1700.0)
async def rows_from_outside(job: AttackedJob) -> None:
    """README.md, links and saved states that name files outside of their folder: not read."""

    def cases(folder: Path) -> Iterator[tuple[object, object, str]]:
        (folder / "outside.txt").write_text("secret\n")
        (folder / "outside.csv").write_text("prompt\nsecret\n")
        for name in ("readme", "linked", "saved"):
            (folder / name).mkdir()
        text = "---\nconfigs:\n- config_name: default\n  data_files: ../outside.txt\n---\n"
        (folder / "readme" / "README.md").write_text(text)
        (folder / "linked" / "train.csv").symlink_to("../outside.csv")
        state = {"_data_files": [{"filename": "../outside.csv"}]}
        (folder / "saved" / "state.json").write_text(json.dumps(state))
        for name in ("readme", "linked", "saved"):
            yield MODEL, folder / name, "outside of"

    await each(cases)


@attack("author of files", seconds=2500.0)
async def models_that_cannot_be(job: AttackedJob) -> None:
    """config.json that is deep, huge or negative, headers that lie, code for the tokenizer: 64."""

    def cases(folder: Path) -> Iterator[tuple[object, object, str]]:
        rows = folder / "rows.jsonl"
        rows.write_text('{"prompt": "a"}\n')
        directory = write_tiny_model(folder / "model", "llama")
        config = directory / "config.json"
        good: dict[str, Any] = json.loads(config.read_text())
        for text, names in (
            ('{"a":' * 10**5, "nested too deeply"),
            (json.dumps(good | {"vocab_size": 10**30}), "vocab_size"),
            (json.dumps(good | {"num_hidden_layers": 10**6}), "num_hidden_layers"),
            (json.dumps(good | {"hidden_size": -16}), "hidden_size"),
        ):
            config.write_text(text)
            yield directory, rows, names
        config.write_text(json.dumps(good))
        ran = folder / "ran"
        (directory / "evil.py").write_text(f"open({str(ran)!r}, 'w').close()\nclass T: pass\n")
        settings = directory / "tokenizer_config.json"
        own = {"tokenizer_class": "T", "auto_map": {"AutoTokenizer": ["evil.T", "evil.T"]}}
        settings.write_text(json.dumps(json.loads(settings.read_text()) | own))
        yield directory, rows, "which is never run"
        expect(not ran.exists(), "the tokenizer's code ran")
        (directory / "model.safetensors").write_bytes((2**62).to_bytes(8, "little"))
        yield directory, rows, "is not a whole safetensors file"

    await each(cases)


@attack("author of a response")
async def signals_by_descriptors(job: AttackedJob) -> None:
    """Sandboxed code sets the owner and the signal of a descriptor: EPERM."""
    # What it needs is not in every environment.
    from rollcall_plugins.rewards.code.sandbox.code_run import Limits, run_program  # noqa: PLC0415

    code = (
        "import fcntl, os\n"
        "for number, value in ((8, os.getppid()), (10, 9), (4, 0o20000)):\n"
        " try: fcntl.fcntl(0, number, value); print(number, 'was done')\n"
        " except PermissionError: pass\n"
    )
    done = await asyncio.to_thread(run_program, code, "", Limits(seconds=10, memory=256 << 20))
    expect(done.ended_well and not done.output, f"not refused: {done.output!r}")


@attack("author of an RLJob")
async def references_to_secrets(job: AttackedJob) -> None:
    """A prompt template with $(KEY): what the kubelet makes of the variable holds no Secret."""
    text = "$(KEY) $$(KEY) $$ $"
    value = variable("ANY", text)["value"]
    made = kubelet_expansion.expand(value, {"KEY": "secret"})
    expect(made == text, f"the worker reads {made!r}")
