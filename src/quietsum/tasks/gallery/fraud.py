"""Card fraud: which of 284,807 payments were not made by the card's owner? 492, so accuracy says nothing: AUPRC does.

The files and the ten splits are described in :mod:`quietsum.tasks.gallery.files.fraud`. Features are made from one row
and constants that are written here: each component V as t = tanh(V / 3), which bounds what a single extreme payment can
do, the logarithm of the amount, and the time of day as a point on a circle; the network also reads how far a component
lies outside the ordinary, max(t² − ¼, 0). Nothing is standardised by the data. Noise grows with the number of weights;
the private default is the smallest model: 31 features, every record in every step, a hundred steps.

Scores are AUPRC first, then AUC, then F1. A threshold for F1 has to be chosen somewhere, and choosing it on training
rows would be one more question to private data. So a tenth of the rows, the validation part, is declared public: it
never trains, the threshold with the best F1 on it is taken, and F1 is that of the test part. For comparison, NVFLARE's
hello-dp example reports F1 .816 at ε 1 (two clients, an MLP 29-64-32-2, five rounds, no AUPRC given).

``start="public"`` begins at the logistic regression fitted to that public tenth instead of at no weights. What it is
worth is worth saying plainly: nearly all of what is gained comes from those public rows, the private steps after them
add little at ε 1, and who has no public rows of the same kind has no such start. benchmarks/fraud_limits.py measures
each by itself. F1's threshold is then chosen on rows that the start was fitted to; test rows have chosen neither.

The unit is one record, since the set names no cards; a payment that is in the file twice (1,081 are) is two records.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Final, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from quietsum.errors import InvalidParameter
from quietsum.tasks.checks import check_options
from quietsum.tasks.datafiles import data_folder
from quietsum.tasks.gallery.files.fraud import COLUMNS, KNOWN, Payments, find_payments, payment_parts, read_payments
from quietsum.tasks.models import binary_cross_entropy, fit_public, log_odds, start_at
from quietsum.tasks.protocol import Metrics, Settings
from quietsum.tasks.roots import check_root, split_root
from quietsum.tasks.scores import average_precision, best_f1_threshold, f1_score, roc_auc

__all__ = ["FEATURES", "FraudTask", "payment_features"]

FEATURES: Final = 2 * COLUMNS + 3
FEW: Final = COLUMNS + 3  # without the extremes: what the linear model reads
SIZES: Final = (199_314, 199_461, 199_292, 199_176, 199_446, 199_336, 199_170, 199_538, 199_364, 199_398)
"""The declared number of training rows of each split."""
_DAY: Final = 86_400
_SHARE: Final = 0.0025  # a guess that looks at no row: one payment in four hundred
_PULL: Final = 1e-5  # of the fit to public rows: weight decay in units of the mean loss


def payment_features(payments: Payments) -> NDArray[np.float32]:
    """59 features of each payment, all of them within about ±2.

    Guarantees: row i depends on payment i and on constants alone.
    """
    components = np.tanh(payments.components.astype(np.float32) / 3)
    extreme = np.maximum(components**2 - 0.25, 0)
    amount = np.log1p(payments.amounts) / 4 - 1
    angle = 2 * np.pi * (payments.seconds % _DAY) / _DAY
    found = np.column_stack([components, extreme, amount, np.sin(angle) / 2, np.cos(angle) / 2])
    return np.ascontiguousarray(found, dtype=np.float32)


@functools.cache
def _payments(folder: Path) -> Payments:
    return read_payments(folder, KNOWN)


@functools.cache
def _public_fit(folder: Path) -> tuple[NDArray[np.float64], float]:
    """Weights and bias from the public tenth, which is the same in all splits."""
    rows, labels = _part(folder, 0, 1, "linear")
    return fit_public(rows.numpy(), labels.numpy(), l2=_PULL)


def _part(folder: Path, split: int, which: int, network: str) -> tuple[Tensor, Tensor]:
    payments = _payments(folder)
    chosen = payment_parts(payments, split) == which
    some = Payments(
        components=payments.components[chosen], seconds=payments.seconds[chosen],
        amounts=payments.amounts[chosen], labels=payments.labels[chosen],
    )  # fmt: skip
    found = payment_features(some)
    if network == "linear":
        found = np.delete(found, np.s_[COLUMNS : 2 * COLUMNS], axis=1)
    return torch.from_numpy(found), torch.from_numpy(some.labels.astype(np.int64))


class _InDouble(nn.Sequential):
    """Layers in float64 that take rows of any precision."""

    def forward(self, rows: Tensor) -> Tensor:
        """As the layers do."""
        return super().forward(rows.double())  # type: ignore[no-any-return, no-untyped-call]


@final
class FraudTask:
    """Was it fraud? ``network`` is ``linear`` (logistic regression on 31 features) or ``mlp`` (59-64-32-1, tanh).

    ``split`` 0 … 9 is one of ten paired splits; ``evaluate_on`` is ``test``, or ``validation`` while settings are
    chosen. The same rows train in both cases. ``start`` is ``zeros``, or ``public``: the linear model begins at what
    the public tenth alone would give. ``root`` payments of that tenth are kept for trials at the server; frauds are one
    in six hundred, so take a thousand or more.
    """

    name, title = "fraud", "card payments, 492 frauds in 284,807"
    loss = staticmethod(binary_cross_entropy)
    public = "the payments were published in 2016 without names or card numbers, as components that cannot be undone"
    without_sites = "the payments carry neither cards nor banks"

    def __init__(
        self,
        *,
        network: str = "linear",
        evaluate_on: str = "test",
        split: int = 0,
        start: str = "zeros",
        root: int | str = 0,
        folder: str | os.PathLike[str] | None = None,
    ) -> None:
        check_options(network, ("linear", "mlp"), evaluate_on, split, len(SIZES))
        if start not in ("zeros", "public"):
            raise InvalidParameter("start", start, "is not known", "choose 'zeros' or 'public'")
        if start == "public" and network != "linear":
            problem = f"is a fit of the linear model, and the network is {network!r}"
            raise InvalidParameter("start", start, problem, "choose network = 'linear', or start = 'zeros'")
        if start == "public" and evaluate_on == "validation":
            problem = "is fitted to the validation rows, so scores on them would flatter it"
            raise InvalidParameter("start", start, problem, "hold training rows out instead, or start = 'zeros'")
        self.root_size = check_root(root, self.name, why_not="components that cannot be undone have no public ranges")
        if start == "public" and self.root_size:
            problem = "is fitted to the rows that a root set is taken from, so any step would raise their loss"
            raise InvalidParameter("start", start, problem, "choose start = 'zeros', or no root set")
        self.network, self.evaluate_on, self.split, self.start = network, evaluate_on, split, start
        self._folder = data_folder("creditcard_ulb") if folder is None else Path(folder)

    @property
    def size(self) -> int:
        """How many rows train, declared."""
        return SIZES[self.split]

    @property
    def settings(self) -> Settings:
        """Chosen on training rows held out for the linear model (benchmarks/utility.py --choose), guessed for mlp.

        With so few frauds nothing is gained by sampling: every step takes all records, and the steps are few.
        """
        if self.network == "mlp":
            training = {"batch_size": 20_000, "epochs": 20, "max_grad_norm": 0.5, "ema_decay": 0.98, "delta": 4e-7}
            return Settings(learning_rate=20.0, optimizer="momentum", training=training)
        training = {"batch_size": self.size, "epochs": 100, "max_grad_norm": 2.4, "ema_decay": 0.95, "delta": 4e-7}
        rate = 75.0 if self.start == "public" else 250.0
        return Settings(learning_rate=rate, optimizer="sgd", training=training)

    @property
    def plain_settings(self) -> Settings:
        """Without privacy, chosen in the same way for the linear model, on the validation part for mlp."""
        training = {"batch_size": 20_000, "epochs": 40, "max_grad_norm": 0.5, "ema_decay": 0.98}
        return Settings(
            learning_rate=90.0 if self.network == "linear" else 30.0, optimizer="momentum", training=training
        )

    def model(self) -> nn.Module:
        """A fresh model with one logit; the linear one starts without weights, or at the fit to public rows.

        Guarantees: no training row is looked at.
        """
        if self.network == "linear":
            last = start_at(nn.Linear(FEW, 1), _SHARE).double()  # sums of 200,000 gradients, which round in float32
            if self.start == "public":
                weights, bias = _public_fit(self._folder)
                with torch.no_grad():
                    last.weight.copy_(torch.from_numpy(weights))
                    last.bias.fill_(bias)
            return _InDouble(last)
        return nn.Sequential(
            nn.Linear(FEATURES, 64), nn.Tanh(), nn.Linear(64, 32), nn.Tanh(),
            start_at(nn.Linear(32, 1), _SHARE, zero=False),
        )  # fmt: skip

    def look_for_data(self, party: str) -> None:
        """:class:`~quietsum.errors.DataMissing` where the files are not there; nothing is read."""
        find_payments(self._folder)

    def records(self) -> tuple[Tensor, ...]:
        """Features and labels of the training part."""
        return self._part(0)

    def root(self) -> tuple[Tensor, ...]:
        """Some of the public tenth, which then choose no threshold."""
        return split_root(self._part(1), self.root_size)[0]

    def _public(self) -> tuple[Tensor, ...]:
        return split_root(self._part(1), self.root_size)[1]

    def evaluate(self, model: nn.Module) -> Metrics:
        """AUPRC and AUC; on the test part also F1, at the threshold that is best on the validation part."""
        rows, labels = self._part(2) if self.evaluate_on == "test" else self._public()
        wanted, scores = labels.numpy(), log_odds(model, rows)
        values = {"auprc": average_precision(wanted, scores), "auc": roc_auc(wanted, scores)}
        if self.evaluate_on == "test":
            rows, labels = self._public()
            threshold = best_f1_threshold(labels.numpy(), log_odds(model, rows))
            values["f1"] = f1_score(wanted, scores >= threshold)
        what = f"{len(wanted):,} published {self.evaluate_on} payments of split {self.split}"
        return Metrics(values=values, on=what, chance={"auprc": float(wanted.mean()), "auc": 0.5})

    def _part(self, which: int) -> tuple[Tensor, Tensor]:
        return _part(self._folder, self.split, which, self.network)
