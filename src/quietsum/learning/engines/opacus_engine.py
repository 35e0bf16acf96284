"""Opacus behind the same Protocol: its hooks, and its ghost clipping.

Opacus (Yousefpour et al. 2021) is the best-known library of this kind. Here it is an alternative engine and a second
opinion: its per-example gradients and norms are its own, the clip rule and the care for NaN are ours, so that both can
be compared number by number. Its hooks are attached for the length of one call, and the model is left as it was.
"""

from __future__ import annotations

import contextlib
import importlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any, final

import torch
from torch import Tensor, nn

from quietsum.errors import InvalidParameter, QuietsumError
from quietsum.learning.checks.frozen_randomness import replay_chance
from quietsum.learning.clipping import Clip
from quietsum.learning.engines.naive import NaiveEngine
from quietsum.learning.engines.protocol import (
    Batch,
    Block,
    Engine,
    Loss,
    clip_instances,
    count_small,
    in_blocks,
    losses_of,
    safe_factors,
    trainable,
)

__all__ = ["OpacusEngine", "opacus_engine"]

_REMARK = "Full backward hook is firing"  # because the first layer's input needs no gradient; so it is
_OWN = ("grad_sample", "_current_grad_sample", "_norm_sample", "_forward_counter")


@contextlib.contextmanager
def _still(model: nn.Module) -> Iterator[None]:
    """Dropout off, everything else in training mode."""
    drops = [module for module in model.modules() if isinstance(module, nn.modules.dropout._DropoutNd)]
    before = [module.p for module in drops]
    for module in drops:
        module.p = 0.0
    try:
        yield
    finally:
        for module, p in zip(drops, before, strict=True):
            module.p = p


def _make_up(part: Tensor) -> Tensor:
    """Three rows of the shape of ``part``'s."""
    like = part[:1].expand(3, *part.shape[1:])
    return torch.randn_like(like) if part.is_floating_point() else torch.zeros_like(like)


class OpacusMissing(QuietsumError, ImportError):
    """The engine was asked for by name and the library is not installed."""


def opacus_engine(name: str, model: nn.Module, loss: Loss, clip: Clip, *, micro_batch: int | None = None) -> Engine:
    """The engine "opacus" or "opacus-ghost", or an error that says how to install it."""
    try:
        hooks = importlib.import_module("opacus.grad_sample.grad_sample_module")
        ghosts = importlib.import_module("opacus.grad_sample.grad_sample_module_fast_gradient_clipping")
    except ImportError as problem:
        raise OpacusMissing(
            f"the engine {name!r} needs Opacus, which is not installed: pip install 'quietsum[train]', "
            f"or use engine = 'auto', which needs torch alone"
        ) from problem
    ghost = name == "opacus-ghost"
    if ghost and (clip.order != 2 or len(clip.groups(trainable(model)[0])) > 1):
        remedy = "use engine = 'auto' or 'opacus', or clip with Flat or Automatic"
        raise InvalidParameter("clip", clip, "has no ghost norm in Opacus, which knows one L2 norm per example", remedy)
    kind: Any = ghosts.GradSampleHooksFastGradientClipping if ghost else hooks.GradSampleHooks
    return OpacusEngine(name, kind, model, loss, clip, micro_batch=micro_batch)


@final
class OpacusEngine:
    """Per-example gradients or norms by Opacus, clipped by our rule."""

    def __init__(
        self, name: str, kind: Any, model: nn.Module, loss: Loss, clip: Clip, *, micro_batch: int | None = None
    ) -> None:
        self._name, self._kind, self._model, self._loss, self._clip = name, kind, model, loss, clip
        self._micro_batch = micro_batch
        names, self._parameters = trainable(model)
        self._groups = clip.groups(names)
        self._norms: Tensor | None = None
        self._tried = False

    @property
    def name(self) -> str:
        """As in ``engine_for``."""
        return self._name

    @property
    def why(self) -> str:
        """Why this engine."""
        return "chosen by name: " + ("two backward passes" if self._ghost else "per-example gradients by hooks")

    @property
    def parameters(self) -> tuple[nn.Parameter, ...]:
        """The trainable ones."""
        return self._parameters

    @property
    def _ghost(self) -> bool:
        return self._name == "opacus-ghost"

    def clipped_sum(self, batch: Batch) -> tuple[Tensor, ...]:
        """See :class:`quietsum.learning.engines.protocol.Engine`."""
        if not self._model.training:
            raise InvalidParameter("model", "in eval mode", "is not watched by Opacus", "call model.train() first")
        block = self._by_ghost if self._ghost else self._by_hooks
        if not self._tried and len(batch[0]):
            self._try(batch, block)
            self._tried = True
        sums, self._norms = in_blocks(batch, self._micro_batch, self._parameters, len(self._groups), block)
        return sums

    def _try(self, batch: Batch, block: Callable[[Batch, int], Block]) -> None:
        """Compare with a loop over three made-up examples, once: Opacus has no word for what it does not know.

        A weight that is used outside its module, a border mode or a checkpoint gives it norms that are too small.
        """
        buffers = {name: buffer.clone() for name, buffer in self._model.named_buffers()}
        devices = [part.device.index or 0 for part in self._parameters if part.is_cuda][:1]
        with replay_chance(devices):
            rows = tuple(_make_up(part) for part in batch)
        found: list[list[Tensor]] = []
        for way in (block, self._by_loop):
            with replay_chance(devices), _still(self._model):
                sums, norms = self._or_refused(way, rows)
                found.append([norms.double(), *(part.double() for part in sums)])
            with torch.no_grad():
                for name, buffer in self._model.named_buffers():
                    buffer.copy_(buffers[name])
        limits = [found[1][0].clamp(min=1e-6), *(torch.tensor(self._clip.sensitivity) for _ in self._parameters)]
        apart = max(
            float(((o - t).abs() / limit).max()) for o, t, limit in zip(*found, limits, strict=True) if o.numel()
        )
        if not apart <= 1e-3:
            problem = f"differs from plain gradients by {100 * apart:.2g} % on this model"
            raise InvalidParameter("engine", self._name, problem, "use engine = 'auto', which finds its own way")

    def _or_refused(self, way: Callable[[Batch, int], Block], rows: Batch) -> Block:
        try:
            return way(rows, 3)
        except QuietsumError:
            raise
        except Exception as error:  # whatever Opacus says to a layer that it does not know
            said = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            problem = f"cannot serve this model ({said})"
            raise InvalidParameter(
                "engine", self._name, problem, "use engine = 'auto', which finds its own way"
            ) from error

    def _by_loop(self, batch: Batch, rows: int) -> Block:
        return NaiveEngine(self._model, self._loss, self._clip)._block(batch, rows)

    def small_norms(self) -> Tensor:
        """See :class:`quietsum.learning.engines.protocol.Engine`."""
        return count_small(self._norms, self._clip)

    @contextlib.contextmanager
    def _hook(self) -> Iterator[Any]:
        hooks = self._kind(self._model, loss_reduction="sum", strict=False)
        try:
            yield hooks
        finally:
            hooks.remove_hooks()
            for module in self._model.modules():
                for name in ("activations", "max_batch_len"):
                    module.__dict__.pop(name, None)
            for parameter in self._model.parameters():
                for name in _OWN:
                    parameter.__dict__.pop(name, None)

    def _pass(self, batch: Batch, rows: int) -> Tensor:
        """Forward, and one backward pass that leaves Opacus' findings on the parameters but no ``.grad``."""
        losses = losses_of(self._loss, self._model, batch, rows)
        torch.autograd.grad(losses.sum(), self._parameters, retain_graph=self._ghost, allow_unused=True)
        return losses

    def _by_hooks(self, batch: Batch, rows: int) -> Block:
        with torch.enable_grad(), warnings.catch_warnings(), self._hook():
            warnings.filterwarnings("ignore", message=_REMARK)
            self._pass(batch, rows)
            found = []
            for parameter in self._parameters:
                instances = getattr(parameter, "grad_sample", None)
                if instances is None:
                    instances = parameter.new_zeros((rows, *parameter.shape))
                found.append(instances.detach())
        return clip_instances(found, self._clip, self._groups)

    def _by_ghost(self, batch: Batch, rows: int) -> Block:
        with torch.enable_grad(), warnings.catch_warnings(), self._hook() as hooks:
            warnings.filterwarnings("ignore", message=_REMARK)
            losses = self._pass(batch, rows)
            blank = losses.new_zeros(rows)
            each = [getattr(parameter, "_norm_sample", blank).detach().view(-1) for parameter in self._parameters]
            norms = torch.linalg.vector_norm(torch.stack(each), dim=0)[:, None]
            factors, bad = safe_factors(self._clip, norms)
            hooks.disable_hooks()
            if bad is not None:  # zero times NaN is NaN, so the second pass runs without those examples
                good = ~bad
                if not bool(good.any()):
                    return [torch.zeros_like(parameter) for parameter in self._parameters], norms
                factors = factors[good]
                losses = losses_of(self._loss, self._model, tuple(part[good] for part in batch), len(factors))
            sums = torch.autograd.grad(
                (factors[:, 0] * losses).sum(), self._parameters, allow_unused=True, materialize_grads=True
            )
        return [part.detach() for part in sums], norms
