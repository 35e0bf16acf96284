"""Errors are lessons: each names the parameter, the value and the remedy."""

from __future__ import annotations

import pickle

from quietsum import errors
from quietsum.errors import InvalidParameter


def test_every_error_can_be_caught_as_one_and_as_what_it_is_in_python() -> None:
    for name in errors.__all__:
        assert issubclass(getattr(errors, name), errors.QuietsumError)
    assert issubclass(errors.InvalidParameter, ValueError)
    assert issubclass(errors.CorruptState, ValueError)
    assert issubclass(errors.UnsupportedEvent, TypeError)
    assert issubclass(errors.MixedUnits, TypeError)


def test_an_invalid_parameter_says_name_value_problem_and_remedy() -> None:
    error = InvalidParameter("sample_rate", "high", "is not a number", "use batch_size / dataset_size")
    assert str(error) == "sample_rate = 'high' is not a number; use batch_size / dataset_size"
    assert (error.parameter, error.value, error.problem, error.remedy) == (
        "sample_rate", "high", "is not a number", "use batch_size / dataset_size",
    )  # fmt: skip
    assert str(InvalidParameter("k", 0, "is empty")) == "k = 0 is empty"


def test_an_invalid_parameter_survives_pickling_with_its_parts() -> None:
    error = pickle.loads(pickle.dumps(InvalidParameter("delta", 2, "is no probability", "pass 1e-5")))
    assert (error.parameter, error.value, error.problem, error.remedy) == ("delta", 2, "is no probability", "pass 1e-5")
    assert str(error) == "delta = 2 is no probability; pass 1e-5"
