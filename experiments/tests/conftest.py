"""The application's fixtures, and its command line with the experiments' commands, data sets and noises."""

from hypothesis import settings

import experiments.__main__  # noqa: F401  (adds commands, data sets and noises)
from app.tests.conftest import cache_of_the_session, clusters, own_cache, tiny_images  # noqa: F401

settings.register_profile("fixed", derandomize=True, deadline=None)
settings.load_profile("fixed")
