"""Sums over clients and over noise shares, taken apart for the self-check."""
