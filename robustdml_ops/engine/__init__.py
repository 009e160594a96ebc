"""What all rooms share: similarities by chunks, lanes, gradient memory, updates in the sweep, precision, checks."""
