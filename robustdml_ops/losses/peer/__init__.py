"""Everything that exists for pytorch-metric-learning's sake."""
