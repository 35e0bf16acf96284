"""A classifier with the interface of scikit-learn, trained with differential privacy.

What a private model may know beside ε and δ has to be public: which classes there are, and in which range each feature
lies. Both are stated. A range that is read off the rows would be a fact about the people in them, so without
``bounds`` :meth:`PrivateClassifier.fit` is refused; if no person in the rows needs protection, say so with the reason,
``bounds="public: made-up rows"``.

>>> import numpy as np
>>> draw = np.random.default_rng(0)
>>> y = draw.integers(0, 2, 1000)
>>> X = np.column_stack([50 + 15 * y + draw.normal(0, 10, 1000), 2 + 2 * y + draw.normal(0, 1, 1000)])
>>> model = PrivateClassifier(epsilon=3.0, classes=[0, 1], bounds=[(0, 120), (0, 10)]).fit(X, y)
>>> model.score(X, y) > 0.7, model.guarantee_.epsilon <= 3.0, str(model.guarantee_.neighbours)
(True, True, 'zero-out')
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Self, final

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import Tags
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import nn

from quietsum.errors import InvalidParameter
from quietsum.learning.config import PrivacyConfig
from quietsum.learning.trainer import PrivateTrainer
from quietsum.privacy import Guarantee
from quietsum.validate import choice, positive, whole_number

__all__ = ["PrivateClassifier"]

Floats = NDArray[np.float64]
PUBLIC: Final = "public:"
"""How a reason begins for which a bound or the classes may be read off the rows."""
_FULL: Final = 4096
_STEPS: Final = 60


@final
class PrivateClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """A linear model, or one hidden layer, of classes that are declared.

    ``classes`` are all labels that may come, ``bounds`` one (lowest, highest) pair for each feature or for all; values
    beyond are clipped. ``epsilon`` and ``delta`` (1/(10 n) if omitted) are what one call of :meth:`fit` may cost a
    record; the number of rows is public, so the relation is zero-out. With ``workspace`` a ledger there is charged
    before each step, and a second fit on the data set called ``dataset`` goes on its lifetime budget; without, each fit
    is for itself, and their costs add up. ``epochs``, ``batch_size``, ``learning_rate`` and ``clip`` are chosen from
    the number of rows if omitted.

    Guarantees: the fitted model is (ε, δ)-private for each row, and ``guarantee_`` states it. Predictions tell nothing
    more. ``score`` on training rows is not private: publish scores on other rows.
    """

    classes_: NDArray[Any]
    guarantee_: Guarantee
    model_: nn.Module
    n_features_in_: int

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float | None = None,
        *,
        classes: Sequence[Any] | str | None = None,
        bounds: Any = None,
        model: str = "linear",
        hidden: int = 16,
        epochs: int | None = None,
        batch_size: int | None = None,
        learning_rate: float | None = None,
        clip: float | None = None,
        workspace: str | os.PathLike[str] | None = None,
        dataset: str = "training-records",
    ) -> None:
        self.epsilon, self.delta, self.classes, self.bounds = epsilon, delta, classes, bounds
        self.model, self.hidden = model, hidden
        self.epochs, self.batch_size, self.learning_rate, self.clip = epochs, batch_size, learning_rate, clip
        self.workspace, self.dataset = workspace, dataset

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:  # noqa: N803  # scikit-learn's names
        """Train on the rows ``X`` with labels ``y``, for the whole of ``epsilon``.

        Raises :class:`~quietsum.errors.InvalidParameter` if classes or bounds are not declared. Values that are missing
        and labels that are not declared are refused as scikit-learn refuses them: to the holder of the rows, whose
        error it is, before anything is spent, and not to be passed on.
        """
        rows, labels = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(labels)
        self.classes_ = self._require_classes(labels)
        self.bounds_ = self._require_bounds(rows)
        places = _places(labels, self.classes_)
        positive("epsilon", self.epsilon)
        self.model_ = self._fresh(rows.shape[1])
        config, settings = self._settings(len(rows))
        trainer = PrivateTrainer(
            self.model_, config, workspace=self.workspace, dataset=self.dataset, run=self._next_run()
        )
        try:
            trainer.train((torch.from_numpy(self._scale(rows)), torch.from_numpy(places)), **settings)
            self.guarantee_ = trainer.guarantee()
        finally:
            trainer.close()
        self.model_.eval()
        return self

    def _settings(self, size: int) -> tuple[PrivacyConfig, dict[str, Any]]:
        """How it is trained, by what is stated and by the public number of rows."""
        batch = (
            min(size, _FULL) if self.batch_size is None else min(size, whole_number("batch_size", self.batch_size, 1))
        )
        epochs = max(1, round(_STEPS * batch / size)) if self.epochs is None else self.epochs
        config = PrivacyConfig(
            epsilon=self.epsilon, delta=self.delta, epochs=epochs, batch_size=batch,
            max_grad_norm=1.0 if self.clip is None else self.clip,
        )  # fmt: skip
        return config, {"learning_rate": 4.0 if self.learning_rate is None else self.learning_rate, "optimizer": "sgd"}

    def _next_run(self) -> str:
        """A name in the workspace that no fit before has taken: fit-1, fit-2, …"""
        if self.workspace is None:
            return "fit-1"
        taken = Path(self.workspace) / "training"
        return next(name for number in itertools.count(1) if not (taken / (name := f"fit-{number}")).exists())

    def _fresh(self, features: int) -> nn.Module:
        """A model of zeros, or with a hidden layer of public random weights."""
        choice("model", self.model, ("linear", "mlp"))
        classes = len(self.classes_)
        last = nn.Linear(whole_number("hidden", self.hidden, 1) if self.model == "mlp" else features, classes)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        if self.model == "linear":
            return last.double()
        first = nn.Linear(features, self.hidden)
        with torch.no_grad():
            made = torch.Generator().manual_seed(0)
            first.weight.copy_(torch.randn(first.weight.shape, generator=made) / features**0.5)
            first.bias.zero_()
        return nn.Sequential(first, nn.Tanh(), last).double()

    # -------------------------------------------------------------------------------------- what is public

    def _require_classes(self, labels: NDArray[Any]) -> NDArray[Any]:
        if self.classes is None:
            problem = "are not declared, and which labels occur is a fact about the rows"
            remedy = 'say classes=["no", "yes"], or classes="public: why no person in these rows needs protection"'
            raise InvalidParameter("classes", None, problem, remedy)
        found = np.unique(labels) if _reason("classes", self.classes) else np.unique(np.asarray(self.classes))
        if len(found) < 2:
            problem = f"name {len(found)} class, and there is nothing to tell apart"
            raise InvalidParameter("classes", found.tolist(), problem, "declare two classes or more")
        return found

    def _require_bounds(self, rows: Floats) -> Floats:
        """One (lowest, highest) pair for each feature, (k, 2)."""
        if self.bounds is None:
            problem = "are not declared, and a range that is read off the rows is a fact about the people in them"
            remedy = (
                "say bounds=[(0, 120), …], one pair a feature, or one pair for all, from what is known without the "
                'rows; or bounds="public: why no person in these rows needs protection"'
            )
            raise InvalidParameter("bounds", None, problem, remedy)
        if _reason("bounds", self.bounds):
            return np.stack([rows.min(axis=0), rows.max(axis=0)], axis=1)
        try:
            found = np.asarray(self.bounds, dtype=np.float64)
        except (TypeError, ValueError):
            raise InvalidParameter("bounds", "…", "hold what is no number", "write (lowest, highest) pairs") from None
        if found.shape == (2,):
            found = np.tile(found, (rows.shape[1], 1))
        if found.shape != (rows.shape[1], 2):
            problem = f"do not fit {rows.shape[1]} features"
            raise InvalidParameter("bounds", f"of shape {found.shape}", problem, "one (lowest, highest) pair a feature")
        if not np.isfinite(found).all() or not (found[:, 0] < found[:, 1]).all():
            raise InvalidParameter("bounds", "…", "hold an empty range", "write the smaller number first, both finite")
        return found

    def _scale(self, rows: Floats) -> Floats:
        """Each value in [−1, 1] by its declared range, and each row no longer than 1.

        Guarantees: row i depends on row i and the bounds alone.
        """
        low, high = self.bounds_[:, 0], self.bounds_[:, 1]
        width = np.where(high > low, high - low, 1.0)
        with np.errstate(over="ignore", invalid="ignore"):  # a warning about a value would tell of its row
            unit = np.clip(np.nan_to_num(2 * ((rows - low) / width) - 1, nan=0.0), -1, 1)
        return np.ascontiguousarray(unit / np.sqrt(rows.shape[1]))

    # ------------------------------------------------------------------------------------------- predictions

    def predict_proba(self, X: ArrayLike) -> Floats:  # noqa: N803
        """The chance of each of ``classes_`` for each row."""
        check_is_fitted(self)
        rows = validate_data(self, X, dtype=np.float64, reset=False)
        with torch.no_grad():
            scores = self.model_(torch.from_numpy(self._scale(rows)))
            return np.asarray(torch.softmax(scores, dim=1).numpy())

    def predict(self, X: ArrayLike) -> NDArray[Any]:  # noqa: N803
        """The most likely class of each row."""
        check_is_fitted(self)
        return np.asarray(self.classes_[self.predict_proba(X).argmax(axis=1)])

    def __sklearn_tags__(self) -> Tags:
        """Noise is drawn anew in every fit, and with few rows there is more noise than signal."""
        tags = super().__sklearn_tags__()
        tags.non_deterministic = True
        tags.classifier_tags.poor_score = True
        return tags


def _reason(name: str, stated: Any) -> bool:
    """Whether a reason stands in place of what is declared; raises for any other text."""
    if not isinstance(stated, str):
        return False
    if not stated.startswith(PUBLIC) or not stated[len(PUBLIC) :].strip():
        problem = "is neither a declaration nor a reason"
        raise InvalidParameter(name, stated, problem, f'write the values, or "{PUBLIC} why no person needs protection"')
    return True


def _places(labels: NDArray[Any], classes: NDArray[Any]) -> NDArray[np.int64]:
    found = np.searchsorted(classes, labels).clip(0, len(classes) - 1)
    if not (classes[found] == labels).all():
        problem = "hold a label that is none of the declared classes"
        raise InvalidParameter("y", f"{len(labels)} labels", problem, "declare all classes, or leave those rows out")
    return found.astype(np.int64)
