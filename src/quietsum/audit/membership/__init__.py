"""Membership: can somebody who holds the model tell who trained it?"""
