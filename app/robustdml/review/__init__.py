"""``robustdml audit`` and what goes with it: from a folder or a file to verdicts, a page to look at, and clean data."""
