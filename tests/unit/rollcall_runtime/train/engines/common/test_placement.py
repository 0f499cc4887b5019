"""Moving state to host memory and back; the meta device plays the worker's."""

import pytest
import torch
from torch import nn

from rollcall_runtime.train.engines.common.placement import StatePlacement


def test_on_a_cpu_both_places_are_the_same() -> None:
    model = nn.Linear(2, 2)
    before = model.weight
    placement = StatePlacement(torch.device("cpu"))
    placement.move("host", model=model, gradients=model.parameters())
    assert model.weight is before
    placement.expect_on_worker("model", "optimizer", "gradients")


def test_what_is_in_host_memory_must_be_moved_back_first() -> None:
    model = nn.Linear(2, 2)
    placement = StatePlacement(torch.device("meta"))
    placement.move("host", model=model)
    with pytest.raises(RuntimeError, match="the engine's model is in host memory"):
        placement.expect_on_worker("model")
    placement.expect_on_worker("optimizer")
    placement.move("worker", model=model)
    placement.expect_on_worker("model")
    assert model.weight.is_meta


def test_the_optimizers_state_goes_along_and_its_counter_stays() -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    placement = StatePlacement(torch.device("meta"))
    placement.move("worker", optimizer=optimizer)
    state = optimizer.state[model.weight]
    assert state["exp_avg"].is_meta
    assert not state["step"].is_meta, "AdamW counts on the CPU"


def test_gradients_leave_their_parameters_and_return() -> None:
    model = nn.Linear(2, 2)
    model(torch.ones(1, 2)).sum().backward()
    expected = model.weight.grad
    placement = StatePlacement(torch.device("meta"))
    placement.move("host", gradients=model.parameters())
    assert model.weight.grad is None
    with pytest.raises(RuntimeError, match="gradients is in host memory"):
        placement.expect_on_worker("gradients")
    placement.move("host", gradients=model.parameters())
    kept = next(iter(placement._gradients.values()))
    assert expected is not None
    assert torch.equal(kept, expected), "a second move takes nothing away"
    placement.forget_gradients()
    placement.expect_on_worker("gradients")
