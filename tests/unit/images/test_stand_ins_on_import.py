"""The stand-ins for a GPU are there when the engine `megatron` is imported, and from then on."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
STAND_INS = """
from contextlib import contextmanager
state = ["entered"]
@contextmanager
def on_cpu():
    import rollcall_plugins.trainers.megatron.engine  # as the real one does
    try:
        yield
    finally:
        state.append("left")
"""
PROGRAM = """
import gc, sys
import stand_ins_on_import
assert "cpu_stand_ins" not in sys.modules
import rollcall_runtime.train.engines.fsdp2
assert "cpu_stand_ins" not in sys.modules
import rollcall_plugins.trainers.megatron.engine as engine
from rollcall_plugins.trainers import megatron
gc.collect()
import cpu_stand_ins
assert megatron.seen == cpu_stand_ins.state == ["entered"], cpu_stand_ins.state
assert engine is megatron.engine
"""


def test_the_stand_ins_are_entered_before_the_engine_is_imported_and_stay(tmp_path: Path) -> None:
    megatron = tmp_path / "rollcall_plugins" / "trainers" / "megatron"
    megatron.mkdir(parents=True)
    (megatron / "engine.py").touch()
    (megatron / "__init__.py").write_text(
        "import cpu_stand_ins\nseen = list(cpu_stand_ins.state)\n"
    )
    engines = tmp_path / "rollcall_runtime" / "train" / "engines"
    engines.mkdir(parents=True)
    (engines / "fsdp2.py").touch()
    (tmp_path / "cpu_stand_ins.py").write_text(STAND_INS)
    # -S: no .pth file is read, so that the project itself is not found.
    subprocess.run(
        [sys.executable, "-S", "-c", PROGRAM],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT / 'tests' / 'images'}"},
        check=True,
        timeout=60,
    )
