"""Objects that libraries send between ranks are JSON, and run no code."""

import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.distributed.fsdp._optim_utils import StateInfo, _OptimStateKey, _PosDimTensorInfo

from rollcall_runtime.train.process_group import TrainerProcessGroup

pytestmark = pytest.mark.usefixtures("ranks")

FSDP_STATE = {
    "layer.weight": StateInfo(
        tensors={"exp_avg": _PosDimTensorInfo(torch.Size([2, 3]), torch.bfloat16)},
        scalar_tensors={"step": torch.tensor(3.0)},
        non_tensors={"name": None},
    )
}
MEGATRON_KEYS = [(None, False), ((("lr_mult", 1.0), ("wd_mult", 0.0)), True)]


class MakesFolder:
    """A pickle of this makes a folder when it is loaded."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self._path),)


def exchanged(value: Any) -> Any:
    """What the only rank gets of what it sends."""
    found = [None]
    dist.all_gather_object(found, value)
    return found[0]


def received(data: bytes) -> Any:
    """What a rank makes of what another one sent."""
    tensor = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    return distributed_c10d._tensor_to_object(tensor, len(data), None)  # type: ignore[no-untyped-call]


@pytest.mark.parametrize(
    "value",
    [
        None,
        [1, -2.5, True, "ü", float("inf")],
        {"a": (1, [2]), 3: {}},
        (),
        torch.Size([4, 0]),
        torch.bfloat16,
        FSDP_STATE,
        [_OptimStateKey(("a", "b"), True)],
        MEGATRON_KEYS,
    ],
)
def test_what_libraries_send_arrives_as_it_was(value: Any) -> None:
    found = exchanged(value)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_a_tensor_of_one_number_keeps_its_dtype(dtype: torch.dtype) -> None:
    found = exchanged({"step": torch.tensor(1, dtype=dtype)})["step"]
    assert found.dtype == dtype
    assert found.shape == ()
    assert found == 1


@pytest.mark.parametrize("value", [Path("/"), {1, 2}, torch.zeros(2), b"", os.mkdir])
def test_what_is_no_plain_object_is_not_sent(value: Any) -> None:
    with pytest.raises(TypeError, match=r"ranks send each other no .* as an object"):
        exchanged([value])


def test_a_pickle_that_another_rank_sends_does_not_run(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not JSON"):
        received(pickle.dumps(MakesFolder(tmp_path / "made")))
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[1]",
        b"{}",
        b'{"list": [], "tuple": []}',
        b'{"eval": "1"}',
        b'{"list": 3}',
        b'{"size": ["a"]}',
        b'{"dtype": "load"}',
        b'{"dtype": 3}',
        b'{"dict": [[{"list": []}, 1]]}',
        b'{"number": [{"dtype": "float32"}, [1]]}',
        b'{"number": [{"dtype": "float32"}]}',
        b'{"StateInfo": [1]}',
        b'{"FlatParameter": []}',
        b'{"list": [' * 5000 + b"]}" * 5000,
    ],
)
def test_what_is_no_object_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        received(data)


def test_other_users_of_torch_in_the_process_get_their_pickles_back(
    ranks: TrainerProcessGroup,
) -> None:
    ranks.close()
    assert distributed_c10d._unpickler is pickle.Unpickler
    assert distributed_c10d._pickler is pickle.Pickler
