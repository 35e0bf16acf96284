"""``policy.toml`` in and out: reading it, the list of its keys, and a first one to begin with."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

from quietsum.party.policy import Policy
from quietsum.plan import keys_of, parse_toml, read_toml, value_of

__all__ = ["first_policy", "load_policy", "parse_policy", "policy_keys"]

_NEW = "write a fresh one with: quietsum party new policy.toml"


def load_policy(path: str | os.PathLike[str]) -> Policy:
    """The policy in the file at ``path``; raises :class:`~quietsum.errors.PlanRefused` with all its problems."""
    where = os.fspath(path)
    found: Policy = value_of(Policy, read_toml(path, "policy.toml", _NEW), where=where, remedy=_NEW)
    return dataclasses.replace(found, folder=Path(path).absolute().parent)


def parse_policy(text: str, where: str) -> Policy:
    """The policy in a text; ``where`` stands in front of its problems."""
    found: Policy = value_of(Policy, parse_toml(text, where, _NEW), where=where, remedy=_NEW)
    return found


def first_policy(*, path: object, name: str, address: str, dataset: str, size: int, task: str) -> str:
    """A policy to begin with, as a text: its δ is a power of ten, at most 1/(10 n) and 1e-5.

    >>> text = first_policy(path="p", name="Bern", address="h:1", dataset="visits", size=200_000, task="heart")
    >>> text.splitlines()[-1]
    'delta = 1e-7'
    """
    digits = max(5, len(str(10 * size - 1)))
    return _FIRST.format(
        path=path, name=name, address=address, dataset=dataset, size=size, task=task, delta=f"1e-{digits}"
    )


def policy_keys() -> dict[str, str]:
    """Every key of ``policy.toml`` by its full path, with its meaning."""
    return keys_of(Policy)


_FIRST = """\
# What any coordinator may ask of this site's data. Check it with:
#   quietsum party check {path}

[site]
name = "{name}"
ledger = "ledger.db"                # this site's own books; back them up

[coordinator]
address = "{address}"
root_certificate = "ca.crt"
node_key = "node.key"

[dataset]
name = "{dataset}"
size = {size}                          # declared and public

[[tasks]]
name = "{task}"

[rules]
aggregation = ["mean"]              # also "noisy-sum", "party-noise", "distributed-noise"
# secure = "required"               # the server sees masked sums alone, ...
# smallest_cohort = 4               # ... of at least so many sites
# rule = ["mean", "signguard"]      # how updates may be combined; any rule if omitted
trust_server_sampling = false

# [questions]                       # what may be asked: quietsum ask
# table = "visits.csv"
# epsilon = 0.5                     # for one file of questions
# day = 1.0                         # for all of 24 hours
#   [[questions.columns]]           # only these are read, and no identifier
#   name = "age"
#   kind = "number"
#   bounds = [0, 110]

# [data]                            # held to its schema before a run trains on it
# schema = "data.toml"              # quietsum data new TABLE drafts one

[record]                            # what one record may cost
run = 3.0                           # in one run
smallest_noise = 0.5
largest_clip = 1.0
epsilon = 8.0                       # over all runs together
delta = {delta}
"""
