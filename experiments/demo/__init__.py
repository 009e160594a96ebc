"""The demo: half the labels wrong, four methods, one report."""
