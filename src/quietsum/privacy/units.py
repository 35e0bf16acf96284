"""What a guarantee is about: whom it protects, against whom, and which datasets count as neighbours.

**One sensitivity convention.** Every noise in :mod:`quietsum.privacy.events` is stated relative to C,
the bound on what *one* protected unit may contribute (the clip norm). From there on the relation decides:

=================  =============================  ==========================
relation           what changes                   how far the sum moves
=================  =============================  ==========================
``ADD_REMOVE``     one unit comes or goes         C
``ZERO_OUT``       one unit becomes null          C (and the size is public)
``REPLACE_ONE``    one unit becomes another one   2 C
=================  =============================  ==========================

So ``Gaussian(noise_multiplier=1)`` under replace-one costs what ``Gaussian(noise_multiplier=0.5)`` costs
under add-or-remove, whichever accountant is asked.
"""

from __future__ import annotations

import enum

__all__ = ["Neighbours", "Observer", "PrivacyUnit"]


class PrivacyUnit(enum.StrEnum):
    """Whom a guarantee protects."""

    RECORD = "record"
    """One training example."""
    PERSON = "person"
    """All records of one person at one site, at most k of them."""
    CLIENT = "client"
    """A whole site or user with everything it holds."""


class Observer(enum.StrEnum):
    """Against whom a guarantee holds."""

    SERVER = "server"
    """The server: it runs the rounds and sees what each party sends."""
    RECIPIENTS = "recipients"
    """All who receive the models of all rounds, and nothing else."""


class Neighbours(enum.StrEnum):
    """Which two datasets count as neighbours. The table in the module's text gives the sensitivities."""

    ADD_REMOVE = "add-or-remove-one"
    ZERO_OUT = "zero-out"
    REPLACE_ONE = "replace-one"
