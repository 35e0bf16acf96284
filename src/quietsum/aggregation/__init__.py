"""How a server turns many updates into one step: folds over updates, and what it does with their result."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quietsum.doors import open_door

if TYPE_CHECKING:
    from quietsum.aggregation.clients import ClientSum as ClientSum
    from quietsum.aggregation.fold import (
        Combined as Combined,
        Fold as Fold,
        Vector as Vector,
        length_of as length_of,
        problem_with_update as problem_with_update,
    )
    from quietsum.aggregation.mean import WeightedMean as WeightedMean
    from quietsum.aggregation.notes import NotingFold as NotingFold, NotingState as NotingState, Part as Part
    from quietsum.aggregation.optimizers import (
        RULE as RULE,
        FedAdam as FedAdam,
        FedAvg as FedAvg,
        FedAvgM as FedAvgM,
        ServerAdam as ServerAdam,
        ServerOptimizer as ServerOptimizer,
        ServerState as ServerState,
        check_slots as check_slots,
        server_optimizer as server_optimizer,
    )
    from quietsum.aggregation.robust import (
        BEFORE as BEFORE,
        RULES as RULES,
        Matrix as Matrix,
        RobustFold as RobustFold,
        RobustState as RobustState,
        Rule as Rule,
        Sent as Sent,
        Trial as Trial,
        Verdict as Verdict,
        beyond_memory as beyond_memory,
        find_rule as find_rule,
        measure_memory as measure_memory,
        most_attackers as most_attackers,
        refuse_beyond_memory as refuse_beyond_memory,
    )
else:
    __getattr__, __dir__, __all__ = open_door(__name__)
