"""Defence: data looked at before it is trained on, attacks for drills, and what gives attackers away."""

from __future__ import annotations
