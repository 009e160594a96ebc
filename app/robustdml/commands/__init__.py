"""The commands of ``robustdml``: a module each, with ``add_arguments`` and ``run``."""
