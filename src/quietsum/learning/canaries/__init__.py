"""Canaries in a training: made-up records that a later audit knows everything about.

``record`` holds what is asked for and what is kept, ``carrying`` takes canaries through the steps (torch). What the
record says about the training's claim is worked out in :mod:`quietsum.audit`.
"""
