from __future__ import annotations
def calibrate() -> None:
    """x"""
