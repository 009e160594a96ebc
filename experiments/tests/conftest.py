"""The application's fixtures, and its command line with the experiments' commands, data sets and noises."""

import experiments.__main__  # noqa: F401  (adds commands, data sets and noises)
from app.tests.conftest import cache_of_the_session, chromium, clusters, noisy, own_cache, tiny_images  # noqa: F401
