"""Rows of many candidates are shared among programs, so that a GPU has work where anchors are few."""

import pytest

from robustdml_ops.ops.pairs.triton import parts_of


@pytest.mark.parametrize("programs", [1, 7, 64, 256, 10_000])
@pytest.mark.parametrize("m", [1, 1000, 4096, 36_900, 10**6, 10**7])
def test_parts_cover_all_candidates_and_fill_a_gpu(programs, m):
    parts, per_part = parts_of(programs, m, 1024)
    assert per_part % 1024 == 0
    assert (parts - 1) * per_part < m <= parts * per_part
    assert parts == 1 or per_part >= 4 * 1024
    assert parts <= 264
    if m >= 10**6:
        assert parts * programs >= 132
    if programs >= 256:
        assert parts == 1
