"""Several documents in one row: whose they are decides whether a record may be made of them.

Packing fills a row with short documents, one behind the other, so that no place is wasted on padding. One row is one
record, with one clipped gradient. If all its documents belong to one unit (one person, one author), the record is that
unit's, and all is as with one long document. If they belong to several, two promises break:

* a document is cut where a row ends, so that one unit has parts of two records, and its ε is that of two;
* each token reads what stands before it, so that the gradient of one unit's document depends on another's.

Rows that were packed across units look like any others. :func:`refuse_packed` refuses what can
be seen: a collator that joins the rows of a batch, and columns that packing of whole data sets leaves behind.

In a row of one unit ``position_ids`` that begin again at 0 with each document, and no ``attention_mask``, keep
documents apart: transformers lets no token read another document then. Labels of the first token of a document are
left out, as it follows nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from quietsum.errors import InvalidParameter

__all__ = ["begins_document", "refuse_packed"]

_COLUMNS = ("seq_lengths", "cu_seq_lens_q", "cu_seq_lens_k")  # left by trl's packing, and by a joined batch
_COLLATORS = ("DataCollatorWithFlattening",)
_REMEDY = (
    "give every record a row of its own, padded, or join documents of one person alone, with position_ids that begin "
    "again at each"
)


def refuse_packed(columns: Iterable[Any], collate: Any = None) -> None:
    """Raise where rows, or what a collate function makes of them, are known to join documents of several records."""
    kinds = {kind.__name__ for kind in type(collate).__mro__}
    joining = sorted(kinds & set(_COLLATORS))
    if joining:
        problem = "joins the records of a batch in one sequence, where no gradient belongs to one of them"
        raise InvalidParameter("collate_fn", joining[0], problem, _REMEDY)
    found = sorted(set(_COLUMNS) & set(map(str, columns)))
    if found:
        problem = "are left by packing, which fills a row with documents of several records and cuts them where it ends"
        raise InvalidParameter("data", f"columns {', '.join(found)}", problem, _REMEDY)


def begins_document(position_ids: Tensor) -> Tensor:
    """Where positions begin again, at 0: at the first token of each further document, and in padding.

    >>> begins_document(torch.tensor([[0, 1, 2, 0, 1, 0, 0]])).long().tolist()
    [[0, 0, 0, 1, 0, 1, 1]]
    """
    begins = position_ids == 0
    return torch.cat([torch.zeros_like(begins[:, :1]), begins[:, 1:]], 1)
