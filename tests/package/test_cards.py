"""The code reads every entry of the table of cards, and a changed row changes launches, chunks and backends."""

import dataclasses
import json
import re

import pytest
import torch

from robustdml_ops.backends import cards
from robustdml_ops.backends import dispatch as backends
from robustdml_ops.backends.triton_device import fused_pays
from robustdml_ops.engine import similarity_chunks as chunks
from robustdml_ops.engine.rows import backends as rows
from robustdml_ops.engine.similarity_chunks import MB, cache_rows, chunk_rows
from robustdml_ops.ops.anchor import backends as anchor
from robustdml_ops.ops.classes import backends as classes
from robustdml_ops.ops.pairs import compiled_backends as pairs

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
F32, F64, BF16 = torch.float32, torch.float64, torch.bfloat16
GB = 1024 * MB
PER_CLASS = (0, 1, 300, 512, 1280, 9000, 70_000, 200_000, 10**7)


@pytest.fixture
def on_card(monkeypatch):
    """Let a row serve "cuda"."""

    def put(name="sm_90", **changed):
        row = dataclasses.replace(cards.CARDS.get(name, cards.CARDS[cards.DEFAULT]), **changed)
        monkeypatch.setitem(cards.CARDS, name, row)
        monkeypatch.setattr(cards, "architecture", lambda device: name)
        return row

    monkeypatch.setattr(chunks, "memory", lambda device: 80 << 30)
    return put


def launches(tile_of):
    """Launches of every kernel with a tile, over the shapes and types that the kernel distinguishes."""
    for B in (16, 99, 1024):
        for compute in (F32, F64):
            for labels, by_anchor in ((True, False), (False, False), (False, True)):
                yield anchor.epilogue_launch(B, compute, labels, by_anchor, tile_of("anchor_lse"))
            yield classes.epilogue_launch(B, compute, tile_of("class_lse"))
            yield pairs.epilogue_launch(B, compute, tile_of("pairs"))
        for D in (16, 128, 515):
            yield rows.rows_launch(D, tile_of("rows"))
            for operand in (F32, BF16):
                yield classes.fused_launch(B, D, operand, False, "tf32", True, tile_of("fused_class_lse"))


def check_tiles(row):
    """Blocks are powers of two; a side of a tensor descriptor's box has at most 256 elements."""
    fused = row.tiles["fused_terms"]
    sides = [fused[side] for side in ("rows", "columns", "depth")]
    assert all(16 <= side <= 256 and side & (side - 1) == 0 for side in sides) and fused["programs"] > 0
    for launch in launches(row.tiles.__getitem__):
        blocks = [value for key, value in launch.items() if key.startswith("BLOCK")]
        assert all(value >= 1 and value & (value - 1) == 0 for value in blocks), launch
        assert launch["num_warps"] in (1, 2, 4, 8, 16)


@pytest.mark.parametrize("name", sorted(cards.CARDS))
def test_rows_hold_valid_settings(name):
    row = cards.CARDS[name]
    check_tiles(row)
    assert set(row.backends) == set(backends.UNAVAILABLE)
    assert isinstance(row.fused_steps, bool)
    assert 64 <= row.chunk_least_mb <= row.chunk_most_mb
    assert row.chunk_share >= 1
    assert row.fused_columns is None or row.fused_columns >= 0
    assert name == cards.DEFAULT or re.fullmatch(r"sm_\d{2,3}", name)


def test_a_card_without_a_row_has_the_default(monkeypatch):
    monkeypatch.setattr(cards, "architecture", lambda device: "sm_79")
    assert cards.card(CUDA) is cards.CARDS[cards.DEFAULT]


def test_chunks_follow_the_row(on_card):
    size = 2048 * 4
    for most in (256, 512, 1024):
        on_card(chunk_most_mb=most)
        assert chunk_rows(10**7, 2048, CUDA) * size <= most * MB < 2 * chunk_rows(10**7, 2048, CUDA) * size
    on_card(chunk_most_mb=4096, chunk_share=40)
    assert 1800 * MB < chunk_rows(10**7, 2048, CUDA) * size <= 2048 * MB
    on_card(chunk_least_mb=3072, chunk_most_mb=4096)
    assert 2500 * MB < chunk_rows(10**7, 2048, CUDA) * size <= 3072 * MB


def test_the_order_of_backends_follows_the_row(on_card, monkeypatch):
    monkeypatch.setattr(backends, "UNAVAILABLE", dict.fromkeys(backends.UNAVAILABLE, lambda *_: None))
    table = {name: name for name in backends.UNAVAILABLE}
    for order in (("triton", "native", "eager"), ("native", "triton", "eager"), ("eager", "native", "triton")):
        on_card(backends=order)
        assert backends.preference(CUDA) == order
        assert backends.choose(table, None, CUDA, F32) == order[0]


def test_the_fused_forward_follows_the_row(on_card, monkeypatch):
    X = torch.zeros(1, 128)
    monkeypatch.setattr(cards, "architecture", lambda device: "sm_90")
    for columns, pays in ((None, True), (128, True), (127, False), (0, False)):
        on_card(fused_columns=columns)
        assert fused_pays(X) is pays


def read_with(tmp_path, row):
    path = tmp_path / "cards.json"
    path.write_text(json.dumps(json.loads(cards.TABLE.read_text()) | {"sm_90": row}))
    return cards.read(path)["sm_90"]


def test_a_tile_that_no_kernel_reads_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"no tile of the default row has \[\('pairs', 'element'\)\]"):
        read_with(tmp_path, {"tiles": {"pairs": {"element": 512}}})


def test_a_row_changes_what_it_names_alone(tmp_path):
    read = read_with(tmp_path, {"chunk_most_mb": 512, "tiles": {"pairs": {"num_warps": 8}}})
    default = cards.CARDS[cards.DEFAULT]
    tiles = {**default.tiles, "pairs": {**default.tiles["pairs"], "num_warps": 8}}
    assert read == dataclasses.replace(default, chunk_most_mb=512, tiles=tiles)


@pytest.fixture(params=[4, 24, 80, 141])
def memory(request, on_card, monkeypatch):
    """Of a GPU without a row in the table."""
    on_card(cards.DEFAULT)
    monkeypatch.setattr(chunks, "memory", lambda device: request.param * GB)
    return request.param * GB


@pytest.mark.parametrize("device", [CPU, CUDA])
def test_chunks_stay_within_the_cache(device, on_card):
    on_card(cards.DEFAULT)
    for per_class in PER_CLASS:
        rows = cache_rows(per_class, device)
        assert rows >= 64
        assert rows % 64 == 0
        # Beyond the cache, few rows that keep the products going.
        size = rows * per_class * 4
        assert rows == 64 or size <= 32 * MB or (rows <= 256 and size <= 128 * MB)
        for number in (0, 10**6) if device is CPU else ():
            assert chunk_rows(number, per_class, CPU, 10**6) == rows


@pytest.mark.parametrize("number", [1, 63, 64, 65, 11_318, 10**5, 10**6, 10**7])
def test_a_gpu_takes_chunks_of_one_size_within_its_memory(number, memory):
    budget = min(GB, max(256 * MB, memory // 64))
    for per_class in PER_CLASS:
        rows, size = chunk_rows(number, per_class, CUDA), 4 * max(1, per_class)
        assert rows % 64 == 0
        assert rows == 64 or (rows <= 1 << 20 and rows * size <= budget)
        count = -(-number // rows)
        assert rows * count - number < 64 * count  # the last one is no sliver
        if count > 1:  # and one chunk less would be too large
            larger = -(-number // (count - 1))
            assert larger > 1 << 20 or (larger + 64) * size > budget


def test_temporaries_of_an_epilogue_count(memory):
    plain, eager = chunk_rows(10**7, 1280, CUDA), chunk_rows(10**7, 1280, CUDA, 8 * 256)
    assert eager < plain
    assert eager * (1280 + 8 * 256) * 4 <= GB


@pytest.mark.parametrize("m", [1, 1000, 4096, 36_900, 10**6, 10**7])
def test_parts_cover_all_candidates_and_fill_a_gpu(m):
    for programs in (1, 7, 64, 256, 10_000):
        parts, per_part = pairs.parts_of(programs, m, 1024)
        assert per_part % 1024 == 0
        assert (parts - 1) * per_part < m <= parts * per_part
        assert parts == 1 or per_part >= 4 * 1024
        assert parts <= 264
        assert m < 10**6 or parts * programs >= 132
        assert programs < 256 or parts == 1
