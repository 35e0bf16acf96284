"""Defence: data looked at before it is trained on, attacks for drills, and what gives attackers away."""

from __future__ import annotations

from quietsum.defence.attacks import ATTACKS, Attack, Seen, attack_named
from quietsum.defence.poison import DATA_ATTACKS, Trigger, backdoored, flip_labels

__all__ = ["ATTACKS", "DATA_ATTACKS", "Attack", "Seen", "Trigger", "attack_named", "backdoored", "flip_labels"]
