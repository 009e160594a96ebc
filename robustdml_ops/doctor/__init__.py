"""``robustdml doctor``: what runs here, on what, how exactly and how fast, and what to do about what does not.

It needs nothing but the package itself, no extra: it is what one runs where something is missing.
"""
