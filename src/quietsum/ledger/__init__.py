"""The privacy ledger: append-only, hash-chained, signed, with budgets that outlive runs.

Start with :class:`Ledger`; :mod:`quietsum.ledger.books` says how lifetimes work and why that is sound, and
``docs/reference/ledger.md`` how to check a ledger by hand.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quietsum.doors import open_door

if TYPE_CHECKING:
    from quietsum.ledger.books import Book as Book, Outlook as Outlook
    from quietsum.ledger.chain.encoding import (
        canonical as canonical,
        digest as digest,
        fold as fold,
        is_canonical as is_canonical,
        label as label,
        message_to_sign as message_to_sign,
    )
    from quietsum.ledger.chain.entries import Entry as Entry, Head as Head, Kind as Kind, Receipt as Receipt
    from quietsum.ledger.chain.export import (
        ExportedLedger as ExportedLedger,
        export_ledger as export_ledger,
        operator_only as operator_only,
        read_export as read_export,
        verify_export as verify_export,
    )
    from quietsum.ledger.chain.journal import Clock as Clock, system_clock as system_clock
    from quietsum.ledger.chain.keys import (
        SigningKey as SigningKey,
        VerifyingKey as VerifyingKey,
        key_path as key_path,
        load_key as load_key,
    )
    from quietsum.ledger.chain.verify import (
        Verification as Verification,
        read_anchors as read_anchors,
        verify_file as verify_file,
    )
    from quietsum.ledger.chain.witnesses import Testimony as Testimony, check_succession as check_succession
    from quietsum.ledger.charges import (
        ACCOUNTINGS as ACCOUNTINGS,
        Charge as Charge,
        Dataset as Dataset,
        Terms as Terms,
        budget_from as budget_from,
        budget_to as budget_to,
    )
    from quietsum.ledger.fingerprints import Parts as Parts, as_array as as_array, check_rows as check_rows
    from quietsum.ledger.history import (
        LedgerIdentity as LedgerIdentity,
        RunHistory as RunHistory,
        RunSummary as RunSummary,
    )
    from quietsum.ledger.ledger import Ledger as Ledger
    from quietsum.ledger.notebook_view import say_budget as say_budget, say_spent as say_spent
    from quietsum.ledger.pricing import (
        FIRST as FIRST,
        PRICING as PRICING,
        WHOLE_PLAN as WHOLE_PLAN,
        Cost as Cost,
        CostTally as CostTally,
        Prices as Prices,
        bound_advantage as bound_advantage,
        claim_guarantees as claim_guarantees,
        cost_of as cost_of,
        exceeds as exceeds,
        price_charge as price_charge,
        price_event as price_event,
    )
    from quietsum.ledger.stores.location import ledger_exists as ledger_exists
    from quietsum.ledger.stores.missing import require_nothing_left as require_nothing_left
    from quietsum.ledger.stores.moving import move_to_postgres as move_to_postgres, move_to_sqlite as move_to_sqlite
    from quietsum.ledger.stores.protocol import (
        LedgerStore as LedgerStore,
        MemoryStore as MemoryStore,
        NoLedger as NoLedger,
        Row as Row,
        StoreFailed as StoreFailed,
    )
else:
    __getattr__, __dir__, __all__ = open_door(__name__)
