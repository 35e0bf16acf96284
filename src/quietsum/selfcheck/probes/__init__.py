"""The tests of the self-check, one idea each."""
