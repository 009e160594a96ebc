"""Shared by the primitives: similarities by chunks, lanes, gradient memory, updates in the sweep, precision, checks."""
