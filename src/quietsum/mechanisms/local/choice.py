"""Which protocol for which question, from the protocols' own variances, sizes and work.

>>> choose(4, 1.0, 10_000).protocol.name, choose(1000, 1.0, 10_000).protocol.name
('k-rr', 'oue')
>>> print(choose(4, 1.0, 10_000).reason)
k-rr: a rare answer's standard error is 0.0126 with 10,000 people, 2 bits a report; next best oue, 0.0192.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, final

from quietsum.errors import InvalidParameter, Unreadable
from quietsum.mechanisms.local.domain import Ball, Bins, Categories, Interval, categories, domain_from_dict
from quietsum.mechanisms.local.exact import check_epsilon
from quietsum.mechanisms.local.hadamard import HadamardResponse
from quietsum.mechanisms.local.hashing import LocalHashing
from quietsum.mechanisms.local.mean import MeanProtocol
from quietsum.mechanisms.local.protocol import FrequencyProtocol, LocalProtocol
from quietsum.mechanisms.local.randomized_response import KRandomizedResponse
from quietsum.mechanisms.local.sketch import CountMeanSketch
from quietsum.mechanisms.local.unary import Rappor, UnaryEncoding
from quietsum.mechanisms.local.vectors import PrivUnit
from quietsum.validate import whole_number

__all__ = ["NAMES", "Choice", "choose", "make_protocol", "protocol_from_dict"]

_SHARES: dict[str, Callable[..., FrequencyProtocol]] = {
    "k-rr": KRandomizedResponse,
    "oue": UnaryEncoding,
    "sue": lambda **given: UnaryEncoding(optimised=False, **given),
    "rappor": Rappor,
    "olh": LocalHashing,
    "hadamard": HadamardResponse,
    "cms": CountMeanSketch,
    "hcms": lambda **given: CountMeanSketch(hadamard=True, **given),
}
_MEANS: tuple[Literal["duchi", "piecewise", "hybrid"], ...] = ("duchi", "piecewise", "hybrid")
NAMES = (*_SHARES, *_MEANS, "privunit")
"""Every protocol's name."""
_ALIASES = {
    **dict.fromkeys(("rr", "krr", "grr", "randomized-response", "randomised-response"), "k-rr"),
    **dict.fromkeys(("hr", "hadamard-response"), "hadamard"),
    **dict.fromkeys(("count-mean-sketch", "countmeansketch"), "cms"),
}
_PARAMETERS: dict[str, tuple[str, ...]] = {
    "rappor": ("permanent_epsilon", "size", "hashes", "cohorts", "seed"),
    "cms": ("functions", "width", "seed"),
    "hcms": ("functions", "width", "seed"),
}
_MOST_WORK = 2e10  # of a collector: hashes or bits
_MOST_BITS = 8192  # of one report


def make_protocol(
    name: str, domain: int | Sequence[str] | Categories | Bins | Interval | Ball, epsilon: float, **parameters: Any
) -> LocalProtocol:
    """A protocol by its name.

    >>> make_protocol("oue", ["red", "green", "blue"], 2.0).bits
    3
    """
    name = _ALIASES.get(str(name).casefold().replace("_", "-"), str(name).casefold())
    if name not in NAMES:
        raise InvalidParameter("protocol", name, "is not known", f"choose one of {', '.join(NAMES)}")
    if unknown := sorted(set(parameters) - set(_PARAMETERS.get(name, ()))):
        raise InvalidParameter(unknown[0], parameters[unknown[0]], f"means nothing to {name}", "leave it out")
    if name in _SHARES:
        if isinstance(domain, Interval | Ball):
            raise InvalidParameter("protocol", name, "needs a list of answers", "name them, or cut numbers into bins")
        return _SHARES[name](domain=categories(domain), epsilon=epsilon, **parameters)
    if name in _MEANS:
        if not isinstance(domain, Interval):
            raise InvalidParameter(
                "protocol", name, "needs bounds for numbers", "--range LOW,HIGH, or Interval(low=…, high=…)"
            )
        return MeanProtocol(domain=domain, epsilon=epsilon, method=name)
    if not isinstance(domain, Ball):
        raise InvalidParameter("protocol", name, "needs a ball", "pass Ball(dimension=…, radius=…)")
    return PrivUnit(domain=domain, epsilon=epsilon)


def protocol_from_dict(values: object) -> LocalProtocol:
    """The protocol that a header states. Raises :class:`Unreadable` where the header is not one that we wrote."""
    keys = ("protocol", "epsilon", "domain", "parameters")
    if not isinstance(values, Mapping) or any(key not in values for key in keys):
        raise Unreadable("the header names no protocol; is this a file of reports?")
    name, epsilon, parameters = values["protocol"], values["epsilon"], values["parameters"]
    domain = domain_from_dict(values["domain"])
    if not isinstance(name, str) or not isinstance(parameters, Mapping) or name not in NAMES:
        raise Unreadable("the header names a protocol that is not known here; update quietsum")
    given = {key: value for key, value in parameters.items() if key in _PARAMETERS.get(name, ())}
    try:
        found = make_protocol(name, domain, epsilon, **given)
    except (InvalidParameter, TypeError) as error:
        raise Unreadable(f"the header's parameters are not possible: {error}") from None
    if found.to_dict() != {key: values[key] for key in keys}:
        raise Unreadable("the header's parameters are not those of its protocol; ask for the file again")
    return found


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Choice:
    """The recommended protocol, why, and every candidate's largest standard error."""

    protocol: LocalProtocol
    reason: str
    standard_errors: dict[str, float]
    left_out: dict[str, str]


def choose(domain: int | Sequence[str] | Categories | Bins | Interval | Ball, epsilon: float, n: int) -> Choice:
    """The protocol with the smallest standard error among those whose reports and whose work are bearable.

    For shares the variance of a rare answer counts, for means the largest over all values. Ties go to the shorter
    report. k-rr wins up to d = 3e^ε + 2 answers; from there oue and olh have the same variance, and hadamard has a
    little more for far less work.
    """
    epsilon, n = check_epsilon(epsilon), whole_number("n", n, 1)
    left_out: dict[str, str] = {}
    if isinstance(domain, Ball):
        vectors = PrivUnit(domain=domain, epsilon=epsilon)
        found: list[tuple[float, LocalProtocol]] = [(vectors.variance(n), vectors)]
        what = "the mean vector's root mean square error is"
    elif isinstance(domain, Interval):
        means = [MeanProtocol(domain=domain, epsilon=epsilon, method=name) for name in _MEANS]
        found = [(one.variance(n), one) for one in means]
        what = "the mean's standard error is at most"
    else:
        answers = categories(domain)
        shares = [_SHARES[name](domain=answers, epsilon=epsilon) for name in ("k-rr", "oue", "sue", "olh", "hadamard")]
        found = [(one.variance(n), one) for one in shares]
        what = "a rare answer's standard error is"
        for one in shares:
            if one.bits > _MOST_BITS:
                left_out[one.name] = f"a report has {one.bits:,.0f} bits"
            elif one.name in ("oue", "sue", "olh") and n * answers.size > _MOST_WORK:
                left_out[one.name] = f"the collector would look at {n * answers.size:.0e} bits or hashes"
    errors = {one.name: math.sqrt(variance) for variance, one in found}
    able = [one for _, one in found if one.name not in left_out]
    least = min(errors[one.name] for one in able)
    ordered = sorted(able, key=lambda one: (round(errors[one.name] / least, 3), one.bits))
    best = ordered[0]
    reason = f"{best.name}: {what} {errors[best.name]:.3g} with {n:,} people, {best.bits:,.0f} bits a report"
    if len(ordered) > 1:
        reason += f"; next best {ordered[1].name}, {errors[ordered[1].name]:.3g}"
    reason += "".join(f"; not {name}: {why}" for name, why in left_out.items()) + "."
    return Choice(protocol=best, reason=reason, standard_errors=errors, left_out=left_out)
