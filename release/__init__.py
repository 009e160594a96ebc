"""Source distribution and wheels of a commit: made, and opened again to see what is in them."""
