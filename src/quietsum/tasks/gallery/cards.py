"""Fraud among card payments that carry a card number: the task on which ε per record meets ε per card.

The file is described in :mod:`quietsum.tasks.gallery.files.cards`. A card lies wholly in one part, by a hash of its
number. Features are made from one row and constants written here: the amount in 20 bins of 5,000, the store hashed into
512 buckets and the country into 32 (a hash needs no list of names, which would be learned from private rows), the
provider by a fixed list, whether the customer was there, and the hour. Which columns to use was decided by looking at
all cards, those of the test part too: scores here show what privacy costs, not how well fraud is found.

A card has 1 to 10 payments, and :meth:`CardsTask.people` says whose each one is. ε per record protects one payment; the
card's owner is protected by ε per card, which needs a bound on how many payments of a card may take part.
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

from quietsum.tasks.checks import check_options, one_site_each
from quietsum.tasks.datafiles import data_folder
from quietsum.tasks.gallery.files.cards import KNOWN, CardPayments, card_parts, find_cards, read_card_payments
from quietsum.tasks.models import binary_cross_entropy, log_odds, start_at
from quietsum.tasks.protocol import Metrics, Settings
from quietsum.tasks.roots import check_root, split_root
from quietsum.tasks.scores import average_precision, roc_auc
from quietsum.tasks.splits import bucket_of, buckets

__all__ = ["FEATURES", "PROVIDERS", "CardsTask", "card_features"]

PROVIDERS: Final = (
    "American Express", "Diners Club / Carte Blanche", "Discover", "JCB 15 digit", "JCB 16 digit", "Maestro",
    "Mastercard", "VISA 13 digit", "VISA 16 digit", "VISA 19 digit",
)  # fmt: skip
"""The providers that the package Faker knows; another name counts as none of them."""
_BINS: Final = 20
_WIDTH: Final = 5_000.0
_STORES: Final = 512
_COUNTRIES: Final = 32
FEATURES: Final = _BINS + _STORES + _COUNTRIES + len(PROVIDERS) + 3
SIZES: Final = {"test": 79_718, "validation": 69_875}
"""The declared number of training rows."""
_SHARE: Final = 0.1  # a round guess of how often fraud comes, from no row


def card_features(payments: CardPayments) -> NDArray[np.float32]:
    """577 features of each payment. Guarantees: row i depends on payment i and on constants alone."""
    rows = np.arange(len(payments))
    found = np.zeros((len(payments), FEATURES), dtype=np.float32)
    found[rows, np.minimum(payments.amounts // _WIDTH, _BINS - 1).astype(np.int64)] = 1
    found[rows, _BINS + buckets(payments.stores, _STORES)] = 1
    found[rows, _BINS + _STORES + bucket_of(payments.countries, _COUNTRIES)] = 0.3
    first = _BINS + _STORES + _COUNTRIES
    number = {name: place for place, name in enumerate(PROVIDERS)}
    provider = np.array([number.get(name, -1) for name in payments.providers], dtype=np.int64)
    known = provider >= 0
    found[rows[known], first + provider[known]] = 0.3
    angle = payments.hours * (2 * np.pi / 24)
    found[:, -3] = 0.3 * payments.present
    found[:, -2], found[:, -1] = 0.3 * np.sin(angle), 0.3 * np.cos(angle)
    return found


@functools.cache
def _payments(folder: Path) -> CardPayments:
    return read_card_payments(folder, KNOWN)


@functools.cache
def _features(folder: Path) -> NDArray[np.float32]:
    return card_features(_payments(folder))


@final
class CardsTask:
    """Was it fraud? ``network`` is ``linear`` (logistic regression) or ``mlp`` (577-32-1, tanh).

    With ``evaluate_on="validation"`` a tenth of the cards leaves the training part and is scored instead of the test
    cards, so that settings are chosen without those.
    """

    name, title = "cards", "card payments of 33,333 cards, 15 % fraud"
    loss = staticmethod(binary_cross_entropy)
    public = "the payments are made-up demo data that come with the package evalml"
    person = "card"
    one_holder = True  # one bank holds all cards, so its books are charged once for all of them

    def __init__(
        self,
        *,
        network: str = "linear",
        evaluate_on: str = "test",
        split: int = 0,
        root: int | str = 0,
        folder: str | os.PathLike[str] | None = None,
    ) -> None:
        check_options(network, ("linear", "mlp"), evaluate_on, split)
        self.network, self.evaluate_on, self.split = network, evaluate_on, split
        self.root_size = check_root(root, self.name, why_not="no public source says what fraud looks like in numbers")
        self._folder = data_folder("evalml_fraud") if folder is None else Path(folder)

    @property
    def size(self) -> int:
        """How many payments train, declared."""
        return SIZES[self.evaluate_on]

    @property
    def settings(self) -> Settings:
        """Chosen on validation cards for the linear model (benchmarks/utility.py --choose), guessed for the other."""
        training = {"batch_size": 4_000, "epochs": 30, "max_grad_norm": 0.5, "ema_decay": 0.97, "delta": 1e-6}
        return Settings(learning_rate=8.0 if self.network == "linear" else 0.5, optimizer="momentum", training=training)

    @property
    def plain_settings(self) -> Settings:
        """Without privacy, chosen in the same way."""
        training = {"batch_size": 4_000, "epochs": 20, "max_grad_norm": 0.5, "ema_decay": 0.97}
        return Settings(
            learning_rate=10.0 if self.network == "linear" else 0.5, optimizer="momentum", training=training
        )

    def model(self) -> nn.Module:
        """A fresh model with one logit; the linear one starts without weights."""
        if self.network == "linear":
            return nn.Sequential(start_at(nn.Linear(FEATURES, 1), _SHARE))
        return nn.Sequential(nn.Linear(FEATURES, 32), nn.Tanh(), start_at(nn.Linear(32, 1), _SHARE, zero=False))

    def example(self) -> tuple[Tensor, ...]:
        """A made-up payment."""
        return torch.zeros(1, FEATURES), torch.zeros(1, dtype=torch.int64)

    def look_for_data(self, party: str) -> None:
        """:class:`~quietsum.errors.DataMissing` where the files are not there; nothing is read."""
        find_cards(self._folder)

    def records(self) -> tuple[Tensor, ...]:
        """Features and labels of the training cards' payments."""
        return self._part(self._trains())

    def people(self) -> NDArray[np.int64]:
        """The card of each record, in the order of :meth:`records`.

        Guarantees: no card has payments on both sides of the split, so that what a card pays here is all it pays.
        """
        cards, trains = _payments(self._folder).cards, self._trains()
        one_site_each(cards, trains, person=self.person)
        return cards[trains].astype(np.int64)

    def sites(self) -> tuple[str, ...]:
        """The same as names: every card is a client of a federation, or wholly in one with ``parties = n``."""
        return tuple(f"card-{number}" for number in self.people().tolist())

    def root(self) -> tuple[Tensor, ...]:
        """Some of the published records that would be scored, for trials at the server."""
        return split_root(self._read_scored(), self.root_size)[0]

    def evaluate(self, model: nn.Module) -> Metrics:
        """AUC and average precision on cards that do not train."""
        rows, labels = split_root(self._read_scored(), self.root_size)[1]
        wanted, scores = labels.numpy(), log_odds(model, rows)
        values = {"auc": roc_auc(wanted, scores), "auprc": average_precision(wanted, scores)}
        what = f"{len(wanted):,} published payments of other cards ({self.evaluate_on})"
        return Metrics(values=values, on=what, chance={"auc": 0.5, "auprc": float(wanted.mean())})

    def _read_scored(self) -> tuple[Tensor, ...]:
        """Records that need no protection: those that are scored, and those of the root set."""
        return self._part(card_parts(_payments(self._folder)) == (2 if self.evaluate_on == "test" else 1))

    def _trains(self) -> NDArray[np.bool_]:
        part = card_parts(_payments(self._folder))
        chosen: NDArray[np.bool_] = part == 0 if self.evaluate_on == "validation" else part != 2
        return chosen

    def _part(self, chosen: NDArray[np.bool_]) -> tuple[Tensor, Tensor]:
        labels = _payments(self._folder).labels[chosen]
        return torch.from_numpy(_features(self._folder)[chosen]), torch.from_numpy(labels.astype(np.int64))
