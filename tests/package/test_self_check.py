"""The self-check finds a backend that is wrong on a card, here on the CPU, and the next one takes over."""

import json
import os
import stat

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from robustdml_ops import losses, ops, robust
from robustdml_ops.backends import dispatch, self_check
from robustdml_ops.ops.anchor.sweep import BACKENDS as ANCHORS
from robustdml_ops.ops.lambert_w.backends import BACKENDS

CPU, F32 = torch.device("cpu"), torch.float32
NATIVE, EAGER = BACKENDS["native"], BACKENDS["eager"]

pytestmark = pytest.mark.usefixtures("native", "cpu_is_checked")


@pytest.fixture
def flipped(monkeypatch):
    """The native superloss has the wrong sign."""
    right = type(NATIVE).superloss

    def wrong(self, *arguments):
        values, sigma = right(self, *arguments)
        return -values, sigma

    monkeypatch.setattr(type(NATIVE), "superloss", wrong)


def cached(tmp_path):
    return json.loads((tmp_path / "cache" / "self_check.json").read_text())


def test_a_wrong_op_is_put_aside_with_one_warning(flipped, tmp_path):
    reason = r"its self-check failed on cpu in superloss: its error is 2\.0e\+00, and may be 2\.4e-04"
    with pytest.warns(RuntimeWarning, match=f"native can't serve cpu: {reason}"):
        assert dispatch.choose(BACKENDS, None, CPU, F32) is EAGER
    assert ops.superloss(torch.rand(3), 0.5, 0.5).isfinite().all()  # a second warning would be an error
    with pytest.raises(RuntimeError, match=f"backend='native' can't run here: {reason}"):
        ops.lambertw(torch.rand(3), backend="native")
    ((environment, primitives),) = cached(tmp_path).items()
    assert environment.startswith("cpu, driver ") and torch.__version__ in environment
    assert "superloss" in primitives["lambert_w"]["native"]


def test_an_exception_is_a_verdict_and_a_lack_of_memory_is_none(monkeypatch, tmp_path):
    def fails(*_):
        raise error

    monkeypatch.setattr(NATIVE, "run", fails)
    error = torch.OutOfMemoryError("another process has the card")
    assert dispatch.choose(BACKENDS, None, CPU, F32) is NATIVE
    assert not (tmp_path / "cache").exists()
    error = ValueError("OutOfResources: shared memory\nmore")
    with pytest.warns(RuntimeWarning, match=r"in lambertw: ValueError: OutOfResources: shared memory \("):
        assert dispatch.choose(BACKENDS, None, CPU, F32) is EAGER


def test_what_plain_pytorch_fails_in_too_is_no_fault_of_a_backend(monkeypatch, tmp_path):
    """As with a setting of PyTorch that rounds products, or lets them raise."""
    primitive = self_check.PRIMITIVES[id(BACKENDS)]
    cases = {name: case._replace(tolerance=0.0) for name, case in primitive.cases.items()}
    monkeypatch.setitem(self_check.PRIMITIVES, id(BACKENDS), primitive._replace(cases=cases))
    assert dispatch.choose(BACKENDS, None, CPU, F32) is NATIVE
    assert not (tmp_path / "cache").exists()


def test_a_kernel_that_breaks_the_context_leaves_its_verdict(flipped, monkeypatch, tmp_path):
    """Nothing else runs in this process; the next one puts the backend aside."""
    monkeypatch.setattr(self_check, "_answers", lambda _: False)
    with pytest.warns(RuntimeWarning, match="superloss"):
        dispatch.choose(BACKENDS, None, CPU, F32)
    assert cached(tmp_path)


def test_the_verdict_is_read_by_the_next_process(flipped, monkeypatch):
    for _ in range(2):
        with pytest.warns(RuntimeWarning, match="self-check"):
            assert dispatch.choose(BACKENDS, None, CPU, F32) is EAGER
        self_check._VERDICTS.clear()
        dispatch._tell_once.cache_clear()
        monkeypatch.setattr(self_check, "run_cases", lambda *_: pytest.fail("the cache has it"))


@pytest.mark.parametrize("damage", ["", "{", "[1]", '{"cpu": 3}', b"\xff"])
def test_a_damaged_cache_has_no_entry(damage, flipped, tmp_path):
    (tmp_path / "cache").mkdir()
    file = tmp_path / "cache" / "self_check.json"
    file.write_bytes(damage if isinstance(damage, bytes) else damage.encode())
    with pytest.warns(RuntimeWarning, match="superloss"):
        assert dispatch.choose(BACKENDS, None, CPU, F32) is EAGER
    assert cached(tmp_path)


def test_the_folder_is_closed_to_others_and_no_link_in_it_is_followed(flipped, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "getpid", lambda: 7)
    precious = tmp_path / "bashrc"
    precious.write_text("the only copy")
    with pytest.warns(RuntimeWarning, match="superloss"):
        dispatch.choose(BACKENDS, None, CPU, F32)
    assert stat.S_IMODE((tmp_path / "cache").stat().st_mode) == 0o700
    (tmp_path / "cache" / "self_check.json").unlink()
    for name in (".self_check.7", "self_check.json"):
        (tmp_path / "cache" / name).symlink_to(precious)
    self_check._VERDICTS.clear()
    assert dispatch.choose(BACKENDS, None, CPU, F32) is EAGER
    assert precious.read_text() == "the only copy" and cached(tmp_path)


def test_a_flipped_bit_lets_no_backend_serve(flipped, tmp_path):
    """The entry is unreadable, of another key, which asks again, or has another reason."""
    with pytest.warns(RuntimeWarning, match="superloss"):
        dispatch.choose(BACKENDS, None, CPU, F32)
    file = tmp_path / "cache" / "self_check.json"
    whole, environment = file.read_bytes(), self_check._environment(CPU)
    for bit in range(8 * len(whole)):
        content = bytearray(whole)
        content[bit // 8] ^= 1 << bit % 8
        file.write_bytes(content)
        found = self_check._read().get(environment, {}).get("lambert_w", {})
        assert found.get("native", "not there") is not None, bytes(content)


def test_another_version_asks_again_and_keeps_the_rest(monkeypatch, tmp_path):
    dispatch.choose(BACKENDS, None, CPU, F32)
    monkeypatch.setattr(self_check, "installed", lambda name: "9")
    self_check._VERDICTS.clear()
    dispatch.choose(BACKENDS, None, CPU, F32)
    assert [primitives["lambert_w"] for primitives in cached(tmp_path).values()] == [{"native": None}] * 2


def test_where_nothing_can_be_written_each_process_asks(tmp_path):
    (tmp_path / "cache").write_text("a file")
    assert dispatch.choose(BACKENDS, None, CPU, F32) is NATIVE


def test_it_can_be_left_out(flipped, monkeypatch):
    monkeypatch.setenv("ROBUSTDML_SELF_CHECK", "0")
    assert dispatch.choose(BACKENDS, None, CPU, F32) is NATIVE


def test_trust_is_postponed_while_operations_are_recorded(flipped, monkeypatch):
    with TorchDispatchMode():
        assert dispatch.choose(BACKENDS, None, CPU, F32) is NATIVE
    with monkeypatch.context() as patch:
        patch.setattr(self_check, "CHECKED", {"cuda"})
        patch.setattr(self_check, "_environment", lambda _: "card")
        patch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        assert self_check.verdict(BACKENDS, "native", torch.device("cuda")) is None
    with pytest.warns(RuntimeWarning, match="superloss"):
        assert dispatch.choose(BACKENDS, None, CPU, F32) is EAGER


@pytest.mark.parametrize(
    "outside", [torch.inference_mode, torch.no_grad, lambda: torch.autocast("cpu", torch.bfloat16)]
)
def test_modes_of_the_caller_change_no_verdict(outside):
    with outside():
        assert dispatch.choose(ANCHORS, None, CPU, F32) is ANCHORS["native"]
        assert dispatch.choose(BACKENDS, None, CPU, F32) is NATIVE


def test_the_cpu_is_not_checked(monkeypatch):
    monkeypatch.undo()
    assert {"cuda"} == self_check.CHECKED
    monkeypatch.setattr(self_check, "_read", lambda: pytest.fail("not on the CPU"))
    assert dispatch.choose(BACKENDS, "native", CPU, F32) is NATIVE


def test_a_wrong_step_of_a_loss_is_found(monkeypatch):
    """Of which all ops may be right, as where a plan has kernels of its own."""
    right = losses.ProxyAnchorLoss.forward
    wrong = lambda self, *inputs: right(self, *inputs) * (2 if self.backend == "native" else 1)  # noqa: E731
    monkeypatch.setattr(losses.ProxyAnchorLoss, "forward", wrong)
    primitive = next(one for one in self_check.PRIMITIVES.values() if one.name == "anchor_steps")
    with pytest.raises(RuntimeError, match=r"in ProxyAnchorLoss: its error is 1\.0e\+00"):
        dispatch.choose(primitive.backends, "native", CPU, F32)


@pytest.mark.nightly
def test_every_primitive_of_the_native_module_passes(cuda_device):
    """CUDA's kernels, run by the emulation where there is no card."""
    for primitive in self_check.PRIMITIVES.values():
        if "native" in primitive.backends:
            assert dispatch.choose(primitive.backends, "native", cuda_device, F32) is primitive.backends["native"]


def test_a_kernel_that_drops_the_last_column_is_found(cuda_device, monkeypatch):
    """One of CUDA's, run by the emulation where there is no card."""
    native, right = ANCHORS["native"], type(ANCHORS["native"]).anchor_lse

    def wrong(self, chunk, *arguments):
        right(self, chunk, *arguments)
        chunk.S[:, -1] = 0

    monkeypatch.setattr(type(native), "anchor_lse", wrong)
    with pytest.raises(RuntimeError, match=r"failed on .* in anchor_loss: its error is"):
        dispatch.choose(ANCHORS, "native", cuda_device, F32)


def test_every_table_of_backends_has_cases():
    assert robust.MemoryBank  # which brings two
    assert losses.ProxyAnchorLoss  # which brings whole steps
    primitives = {primitive.name for primitive in self_check.PRIMITIVES.values() if primitive.cases}
    ours = ["rows", "anchor", "classes", "pairs", "similarity", "vmf", "otsu", "lambert_w", "bank", "class_logits"]
    assert primitives == {*ours, "anchor_steps", "classes_steps", "pairs_steps", "fused_steps"}
