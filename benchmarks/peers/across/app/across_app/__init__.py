"""The work of ``sites.py`` in plain Flower; that file is copied in here before the app is sent."""
