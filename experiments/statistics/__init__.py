"""Statistics over several data sets: paired differences, average ranks, and the targets of the robust method."""
