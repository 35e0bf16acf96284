"""Contracts: one test suite for each Protocol, shipped, so that every implementation can run it, ours or yours.

A contract is a plain class of ``test_…`` methods. Subclass it in your tests, say how your thing is made, and let pytest
(or any runner that knows ``test_`` methods and :class:`unittest.SkipTest`) collect it:

.. code-block:: python

    from quietsum.contracts import AccountantContract

    class TestMyAccountant(AccountantContract):
        def make(self, **options):
            return MyAccountant(**options)
"""

from __future__ import annotations

from quietsum.contracts.accountant import AccountantContract
from quietsum.contracts.engines import EngineContract
from quietsum.contracts.exchanges import ExchangesContract
from quietsum.contracts.federations import FederationContract, WrappedFederationContract
from quietsum.contracts.folds import FoldContract
from quietsum.contracts.ledger_store import LedgerStoreContract
from quietsum.contracts.mechanisms import MechanismContract
from quietsum.contracts.rules import RuleContract
from quietsum.contracts.tasks import TaskContract
from quietsum.contracts.transports import TransportContract

__all__ = [
    "AccountantContract",
    "EngineContract",
    "ExchangesContract",
    "FederationContract",
    "FoldContract",
    "LedgerStoreContract",
    "MechanismContract",
    "RuleContract",
    "TaskContract",
    "TransportContract",
    "WrappedFederationContract",
]
