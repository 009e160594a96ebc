"""Filters, which keep samples of probably wrong labels out of the loss."""
