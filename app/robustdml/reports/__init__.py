"""The report of a run, and the pieces that all reports are made of."""
