"""A loop by hand: what it must not be able to get wrong in silence."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from quietsum.errors import InvalidParameter, QuietsumError
from quietsum.learning.checks.before_training import ClaimContradicted
from quietsum.learning.config import PrivacyConfig
from quietsum.learning.engines.protocol import Batch
from quietsum.learning.own_loop import PoissonLoader, PrivateOptimizer, make_private

ROWS = 60


def records(extra: int = 0) -> Batch:
    inputs = torch.randn(ROWS, 3, generator=torch.Generator().manual_seed(0)) * 0.1
    inputs = torch.cat([inputs, torch.full((extra, 3), 1e4)])
    return inputs, torch.zeros(len(inputs), dtype=torch.int64)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def private(model: nn.Module, **values: Any) -> tuple[PrivateOptimizer, PoissonLoader]:
    settings = PrivacyConfig(**{"noise_multiplier": 1.0, "epochs": 2, "batch_size": 20, **values})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return make_private(model, optimizer, records(), config=settings, selfcheck=False)[1:]


# ----------------------------------------------------------------------------------------------- the self-check


class Steep(torch.autograd.Function):
    """A backward pass that looks at the whole batch; the forward pass gives nothing away."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0] / (gradients[0].norm() + 1e-9) * 100


class Mixing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(Steep.apply(self.first(x)))


def test_an_unsound_step_is_refused_before_the_first_one_unless_the_check_is_switched_off() -> None:
    settings = PrivacyConfig(epsilon=3.0, epochs=1, batch_size=20)
    for selfcheck in (True, False):
        mixing = Mixing()
        given = (mixing, torch.optim.SGD(mixing.parameters(), lr=0.1), records())
        if selfcheck:
            with pytest.raises(ClaimContradicted):
                make_private(*given, config=settings)
        else:
            make_private(*given, config=settings, selfcheck=False)
    model = network().double()
    data = (records()[0].double(), records()[1])
    before = {name: value.clone() for name, value in model.state_dict().items()}
    make_private(model, torch.optim.SGD(model.parameters(), lr=0.1), data, config=settings)  # the control
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


# --------------------------------------------------------------------------------------------- the batch in hand


def test_what_is_done_to_the_batch_in_hand_does_not_reach_the_step() -> None:
    sums: list[Tensor] = []
    mixed: list[Tensor] = []
    for extra in (0, 1):
        data, model = records(extra), nn.Linear(3, 2)
        nn.init.zeros_(model.weight), nn.init.zeros_(model.bias)
        settings = PrivacyConfig(noise_multiplier=1.0, epochs=1, batch_size=len(data[0]))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        _, _, loader = make_private(model, optimizer, data, config=settings, selfcheck=False)
        for batch in loader:
            batch[0].sub_(batch[0].mean(0)).add_(1.0)
            assert loader.pending is not None
            for into, used in ((sums, loader.pending), (mixed, batch)):
                into.append(torch.cat([part.flatten() for part in loader.step.deterministic(used)]))
            break
    assert float((sums[0] - sums[1]).norm()) <= 1.0 + 1e-5
    assert float((mixed[0] - mixed[1]).norm()) > 10  # the control: the batch in hand would have mixed them


# ------------------------------------------------------------------------------------- what must stay as it was


def test_layers_unfrozen_later_are_not_stepped_by_raw_gradients() -> None:
    model = network()
    model[0].requires_grad_(False)
    optimizer, loader = private(model)
    before = model.get_parameter("0.weight").detach().clone()
    batch = next(iter(loader))
    model[0].requires_grad_(True)
    nn.functional.cross_entropy(model(batch[0]), batch[1]).backward()
    with pytest.raises(QuietsumError, match="frozen, unfrozen"):
        optimizer.step()
    model[0].requires_grad_(False)
    with pytest.raises(QuietsumError, match=r"leave out loss\.backward"):
        optimizer.step()  # the raw gradient is still there, and the optimizer would use it
    optimizer.zero_grad()
    optimizer.step()  # the control
    assert torch.equal(model.get_parameter("0.weight"), before)


def test_parameters_frozen_exchanged_or_added_later_are_refused_before_a_charge() -> None:
    def freeze(model: Any, _: Any) -> None:
        model[2].bias.requires_grad_(False)

    def exchange(model: Any, _: Any) -> None:
        model[2].bias = nn.Parameter(torch.zeros(2))

    def add(_: Any, optimizer: Any) -> None:
        optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(2))]})

    for change in (freeze, exchange, add):
        model = network()
        optimizer, loader = private(model)
        change(model, optimizer)
        with pytest.raises(QuietsumError, match="since make_private"):
            next(iter(loader))
        assert loader.spending.charged == 0


@pytest.mark.parametrize("engine", ["auto", "vmap", "naive"])
@pytest.mark.some(1)
def test_a_batch_norm_that_is_switched_back_to_training_is_refused_aloud(engine: str) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).eval()
    optimizer, loader = private(model, engine=engine)
    next(iter(loader))
    optimizer.step()  # the control: on stored statistics it runs
    next(iter(loader))
    model.train()
    with pytest.raises(InvalidParameter, match="fix_batch_norm"):
        optimizer.step()
    with pytest.raises(QuietsumError):
        next(iter(loader))
    assert loader.spending.charged == 2


def test_a_mode_that_was_not_checked_is_refused_and_may_be_put_back() -> None:
    model = network()
    optimizer, loader = private(model)
    for _ in loader:
        model.eval()
        with pytest.raises(QuietsumError, match=r"model\.train\(\)"):
            optimizer.step()
        model.train()
        optimizer.step()
    assert loader.spending.charged == len(loader)


def test_a_step_under_no_grad_still_learns_from_its_batch() -> None:
    gradients = []
    for quiet in (False, True):
        model = network()
        optimizer, loader = private(model, noise_multiplier=1e-4, batch_size=ROWS)  # everyone, and no noise to speak of
        before = model.get_parameter("2.bias").detach().clone()
        for _ in loader:
            with torch.set_grad_enabled(not quiet):
                optimizer.step()
            break
        gradients.append(before - model.get_parameter("2.bias").detach())
    assert float(gradients[0].norm()) > 1e-2 and torch.allclose(gradients[0], gradients[1], atol=1e-4)
    optimizer, loader = private(network())
    with torch.inference_mode(), pytest.raises(QuietsumError, match="inference_mode"):
        next(iter(loader))


# ----------------------------------------------------------------------------------------------- optimizers


def test_an_optimizer_that_does_not_fit_is_refused_at_the_start() -> None:
    model, settings = network(), PrivacyConfig(noise_multiplier=1.0, epochs=1, batch_size=20)
    strange = torch.optim.SGD([*model.parameters(), nn.Parameter(torch.zeros(1))], lr=0.1)
    for optimizer, told in (
        (torch.optim.SGD(model[2].parameters(), lr=0.1), "only some of the parameters"),
        (strange, "does not train"),
        (torch.optim.LBFGS(model.parameters()), "several times a step"),
        (private(model)[0], "private already"),
    ):
        with pytest.raises(InvalidParameter, match=told):
            make_private(model, optimizer, records(), config=settings, selfcheck=False)
    model[0].requires_grad_(False)  # the control: the remedy works
    optimizer = torch.optim.SGD(model[2].parameters(), lr=0.1)
    _, optimizer, loader = make_private(model, optimizer, records(), config=settings, selfcheck=False)
    for _ in loader:
        optimizer.step()


def test_an_average_of_weights_is_refused_rather_than_ignored_and_torchs_own_works() -> None:
    with pytest.raises(InvalidParameter, match="AveragedModel"):
        private(network(), ema_decay=0.9)
    model = network()
    optimizer, loader = private(model)
    averaged = torch.optim.swa_utils.AveragedModel(model)
    for _ in loader:
        optimizer.step()
        averaged.update_parameters(model)
    assert int(averaged.n_averaged) == len(loader)


def test_a_bound_on_people_is_refused_rather_than_ignored() -> None:
    with pytest.raises(InvalidParameter, match="people"):
        private(network(), max_records=2)


def test_schedulers_of_torch_steer_the_private_optimizer() -> None:
    optimizer, loader = private(network(), epochs=3)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    rates = []
    for _ in range(3):
        for _ in loader:
            optimizer.step()
        rates.append(optimizer.inner.param_groups[0]["lr"])
        scheduler.step()
    assert rates == [0.1, 0.05, 0.025]
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.1, patience=0)
    for metric in (1.0, 2.0):
        plateau.step(metric)
    assert optimizer.inner.param_groups[0]["lr"] < 0.00126


def test_state_goes_through_to_the_optimizer_within_and_a_closure_is_refused() -> None:
    model = network()
    optimizer, loader = private(model)
    other = torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.5)
    optimizer.load_state_dict(other.state_dict())
    assert optimizer.param_groups is optimizer.inner.param_groups and optimizer.param_groups[0]["lr"] == 0.7
    assert optimizer.state_dict() == optimizer.inner.state_dict()
    next(iter(loader))
    with pytest.raises(QuietsumError, match="closure"):
        optimizer.step(lambda: 0.0)
    optimizer.step()
