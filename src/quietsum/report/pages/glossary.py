"""The words at the foot of a report, for readers who did not choose them."""

from __future__ import annotations

__all__ = ["WORDS"]

WORDS: tuple[tuple[str, str], ...] = (
    ("ε (epsilon)", "How much one protected unit may change what is released. The probability of any release is at "
     "most e^ε times as large with the unit as without it. Smaller protects more; no value of it is safe by itself: "
     "read the sentences on what an attacker can do, and hold them against the harm of being found."),
    ("δ (delta)", "The chance beyond this promise. It must be far below one in the number of records."),
    ("At most, at least", "The true ε lies between both. The upper bound is the promise; the lower one shows that no "
     "better analysis of the same steps could promise much more."),
    ("Unit", "Whom the promise protects: one record, one person with up to so many records, or one client with "
     "everything it holds. Figures of different units are a list and never a sum."),
    ("Binding unit", "The unit for which the noise was chosen. It stands first."),
    ("Neighbours", "Which two sets of data the promise compares: with and without one unit (add-or-remove-one), with "
     "one unit made empty (zero-out), or with one unit replaced by another (replace-one)."),
    ("Server, recipients", "Against whom the promise holds. The server runs the rounds and sees what each party sends; "
     "recipients have the released models of all rounds, and nothing else."),
    ("Worst party", "Parties of different sizes pay differently. Every figure is that of the party that pays most."),
    ("Noise multiplier", "The standard deviation of the noise, divided by the clip norm."),
    ("Clip norm", "The most that one unit can move a sum. What is longer is shortened to it before noise is added."),
    ("Sampling rate", "The chance of each record to be used in a step. A secret draw protects it further."),
    ("Steps", "How many noisy sums were paid for. Each adds to ε."),
    ("Trade-off curve", "For every share of outsiders whom an attacker accuses wrongly, the largest share of members "
     "that anybody could find. A guess at random lies on the diagonal."),
    ("μ (mu)", "The same curve as one number: telling whether the unit was there is no easier than telling a bell "
     "curve around 0 from one around μ."),
    ("Ledger", "The list of all charges, in which each entry holds the hash of the one before it, so that none can be "
     "taken out or changed. Its head is the newest entry, signed."),
    ("Fingerprint", "A short form of the ledger's public key. It tells whose signature this is, if you have it from "
     "somewhere else than this report."),
    ("Hash (SHA-256)", "A number that another file does not have. It binds this report to the released files."),
)  # fmt: skip
"""Word and meaning, in the order of the page."""
