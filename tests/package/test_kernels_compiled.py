"""Every Triton kernel compiled ahead of time, as public calls launch it.

The calls run on "meta" with the settings of a GPU, so that sizes are those of training and nothing is computed.
"""

from contextlib import nullcontext
from functools import partial

import pytest
import torch

from robustdml_ops import losses, ops
from robustdml_ops.backends.triton_device import tile_of
from robustdml_ops.engine.rows.backends import TritonRows
from robustdml_ops.ops.anchor.backends import epilogue_launch
from robustdml_ops.ops.classes.sweep import ClassSeen
from robustdml_ops.ops.otsu.backends import TRITON_LONGEST
from robustdml_ops.robust import PRISM, MemoryBank
from tests.ahead_of_time import ARCHITECTURES, check, compiling, loops
from tests.launches import everywhere, fused_steps
from tests.nightly import nightly_but

F64, F32, BF16, F16 = torch.float64, torch.float32, torch.bfloat16, torch.float16
META = torch.device("meta")
ROWS = TritonRows()


def zeros(*shape, dtype=F32):
    return torch.zeros(shape, dtype=dtype, device=META)


def labels(*shape):
    return zeros(*shape, dtype=torch.int64)


def matrices(B, C, D, dtype, columns=False):
    """Two that want gradients, the second by columns; without a type bfloat16 and float32, as under autocast."""
    X, of_P = zeros(B, D, dtype=dtype or BF16), {"dtype": dtype or F32}
    P = zeros(D, C, **of_P).t() if columns else zeros(C, D, **of_P)
    return X.requires_grad_(), P.requires_grad_()


def compiled_for(architecture, name, calls=None):
    """The kernels of a call; autocast's operands of bfloat16 PyTorch itself does not give to "meta"."""
    autocast = {"operand_dtype": lambda *_, **__: BF16} if "autocast" in name else {}
    with compiling(architecture) as compiled, everywhere(**autocast):
        (calls or CALLS)[name]()
    return compiled


def anchors(kind, dtype, D=128, B=1024, *, whole=False, limited=False, columns=False, products="high"):
    """Both sums without a gradient, and their total with all; the whole has three biases."""
    C, compute = 64, F64 if dtype == F64 else F32
    bias = partial(zeros, dtype=compute)
    X, P = matrices(B, C, D, dtype, columns)
    sets = {
        "labels": lambda: ops.LabelSets.of(labels(B)),
        "several labels": lambda: ops.LabelSets.of(labels(B, 3), weights=bias(B, 3)),
        "confidences": lambda: ops.ConfidenceSets(9.0, 0.5, bias(B, C)),
        "logits": lambda: ops.ConfidenceSets(9.0, 0.5, None, bias(B, 4), bias(C, 4), bias(C)),
    }[kind]()
    shared = bias(B)
    biases = ops.AnchorBiases(*(bias(n).requires_grad_() for n in (B, B, C))) if whole else (shared, shared, None)
    scales = (bias(C), bias(C)) if whole else (bias(), bias())
    settings = {"alpha": 32.0, "drop_similar_negatives": 0.4 if limited else None}

    def call():
        torch.set_float32_matmul_precision(products)
        with torch.no_grad():
            ops.anchor_lse(X, P, sets, ops.AnchorBiases(*biases), **settings)
        ops.anchor_loss(X, P, sets, ops.AnchorBiases(*biases), *scales, **settings).backward()

    return call


def classes(
    dtype, D=128, B=1024, *, pooling="none", products="high", columns=False, several=False, observed=False, **options
):
    """Forward without a gradient, in one launch, and forward and backward."""
    C, H = 512, 1 if pooling == "none" else 8
    X, P = matrices(B, C * H, D, dtype, columns)
    options |= {"pooling": pooling, "gamma": 0.1 if pooling == "softmax" else None}
    if several:
        options["drop_similar_negatives"] = 0.4

    def call():
        proxies = P if H == 1 else P.view(C, H, D)
        target = labels(B, 3) if several else labels(B)
        torch.set_float32_matmul_precision(products)
        if observed:
            options["seen"] = ClassSeen.of(zeros(B))
        with torch.no_grad():
            ops.class_lse(X, proxies, target, **options)
        sum(each.sum() for each in ops.class_lse(X, proxies, target, **options)).backward()

    return call


def of_classes(compute=F32):
    """A scale and a bias of each class, as PRISM has them: no terms are kept."""
    return {"scale": zeros(512, dtype=compute), "bias": zeros(512, dtype=compute)}


def step(kind, dtype, D=128, B=256, C=512, *, products="high", weighted=False, fused=False, **settings):
    """A planned step of a loss with a class matrix; without a type bfloat16 and float32, as under autocast."""
    loss = kind(C, D, **settings).to(META, dtype or F32)
    X = zeros(B, D, dtype=dtype or BF16).requires_grad_()
    given = {"sample_weights": zeros(B, dtype=torch.bool if fused else F32)} if weighted else {}

    def call():
        torch.set_float32_matmul_precision(products)
        loss._plans = None  # those of another architecture
        with fused_steps() if fused else nullcontext():
            loss(X, labels(B), **given).backward()
        assert None not in loss._plans.known.values()

    return call


def pairs(make, m, dtype=BF16, *, bank=True):
    """A loss of 64 rows beside m, or of m rows with themselves, with all gradients."""
    X, V = matrices(64, m, 128, dtype)
    given = (X, labels(64), None, V, labels(m)) if bank else (V, labels(m))
    return lambda: make().to(META)(*given).backward()


def weighted(m, dtype=BF16, alpha=2.0):
    """Sums over a bank whose rows have weights."""
    X, V = matrices(64, m, 128, dtype)
    one, weights = (zeros(*shape, dtype=F64 if dtype == F64 else F32) for shape in ((), (m,)))
    settings = {"alpha": alpha, "beta": 40.0, "base": 0.5, "epsilon": 0.1, "candidate_weights": weights}
    return lambda: ops.pair_lse_sum(X, labels(64), V, labels(m), one, one, **settings).backward()


def observed(make, n, dtype=BF16):
    """The hardest pairs of a batch beside its loss."""

    def call():
        loss, (X, _) = make(), matrices(n, n, 128, dtype)
        with loss.observed():
            loss(X, labels(n)).backward()

    return call


def towers(make, m=64, **given):
    X, V = matrices(m, m, 128, BF16)
    return lambda: make().to(META)(X, V, **given).backward()


def related(make, B, dtype=BF16):
    """A batch of three labels and an id each."""
    X, _ = matrices(B, B, 128, dtype)
    return lambda: make().to(META)(X, labels(B, 3), sample_ids=labels(B)).backward()


def similar(dtype, result=None, D=128, *, B=256, C=512, products="high", columns=False, apart=False):
    """Cosines without a gradient, in one launch, and with both."""
    X, P = matrices(B, C, D, dtype, columns)
    if apart:
        X, P = (zeros(n, 128, dtype=dtype)[:, :D].requires_grad_() for n in (B, C))

    def call():
        torch.set_float32_matmul_precision(products)
        ops.similarity(X, P, dtype=result or dtype).sum().backward()

    return call


def rows(D, source, operand, *, columns=False):
    """Normalised with another type than the products', as under autocast, and back; rows as they are."""
    P = zeros(D, 64, dtype=source).t() if columns else zeros(64, D, dtype=source)
    U, norms = zeros(64, D, dtype=operand), zeros(64, dtype=F64 if source == F64 else F32)

    def call():
        ROWS.normalize_rows(P, U, norms)
        ROWS.normalize_rows_backward(zeros(64, D, dtype=norms.dtype), U, norms)
        if source != F64:
            G = P.to(BF16)
            ROWS.finish(G, torch.empty_like(G), norms, unit=False)

    return call


def bessel(function, order, dtype):
    """With its derivative."""
    return lambda: function(order, zeros(1000, dtype=dtype).requires_grad_()).sum().backward()


def fit(dim, dtype):
    return lambda: ops.fit_vmf(zeros(1000, dim, dtype=dtype), labels(1000))


def lambert_w(dtype):
    def call():
        x = zeros(1000, dtype=dtype)
        ops.lambertw(x)
        for threshold in (0.5, x):
            ops.confidence(x, threshold, 1.0)
        ops.superloss(x, 0.5, 1.0)

    return call


def otsu(n, dtype=F32):
    return lambda: ops.otsu_threshold(zeros(n, dtype=dtype), 1)


def stored(D, dtype, samples=None):
    """A batch enters a bank."""
    bank = MemoryBank(1000, D, 4000, dtype, num_samples=samples).to(META)
    ids = None if samples is None else labels(256)
    return lambda: bank.enqueue(zeros(256, D, dtype=dtype), labels(256), ids)


def filtered(dtype):
    """Scores of a batch, and those of the classes that it changes."""
    prism = PRISM(1000, 128, "vmf", 0.5, memory_size=4000, memory_dtype=dtype, vmf_start=0).to(META)
    X, y = zeros(256, 128, dtype=dtype), labels(256)
    return lambda: prism.enqueue(X, y, prism(X, y).keep)


SUMS = {"fp32": F32, "fp64": F64}
CALLS = {
    "anchors, bf16": anchors("labels", BF16),
    "anchors, autocast": anchors("labels", None),
    "anchors, autocast, odd batch": anchors("labels", None, B=99),
    "anchors, autocast, odd rows": anchors("labels", None, 99),
    "anchors, bf16, odd rows, odd batch": anchors("labels", BF16, 99, 99),
    "anchors, bf16, long rows": anchors("labels", BF16, 512),
    "anchors, autocast, limited": anchors("labels", None, limited=True),
    "anchors, autocast, long rows, the whole": anchors("labels", None, 512, whole=True),
    "anchors, tf32, odd rows": anchors("labels", F32, 515),
    "anchors, fp32": anchors("labels", F32, products="highest"),
    "confidences, bf16": anchors("confidences", BF16),
    "confidences, autocast, the whole": anchors("confidences", None, whole=True, limited=True),
    "confidences, bf16, long rows, the whole": anchors("confidences", BF16, 512, whole=True),
    "confidences, fp16, long rows": anchors("confidences", F16, 512),
    "confidences, tf32, long rows": anchors("confidences", F32, 512),
    "confidences, tf32, by columns": anchors("confidences", F32, 512, columns=True),
    "logits, autocast, the whole": anchors("logits", None, whole=True, limited=True),
    "logits, fp64, the whole": anchors("logits", F64, whole=True),
    "several labels, autocast": anchors("several labels", None),
    **{
        f"classes, {pooling}, {name}": classes(dtype, pooling=pooling, **of_classes(dtype))
        for pooling in ("none", "max", "softmax")
        for name, dtype in {"bf16": BF16, "autocast": None, "tf32": F32, "fp64": F64}.items()
    },
    **{
        f"classes, {pooling}, several labels, autocast": classes(None, pooling=pooling, several=True, **of_classes())
        for pooling in ("none", "softmax")
    },
    "classes, one scale, autocast": classes(None, scale=100.0, exclude_target=True),
    "classes, odd batch, autocast": classes(None, B=99, **of_classes()),
    "classes, odd rows, odd batch": classes(BF16, 99, 99, **of_classes()),
    "classes, long rows, autocast": classes(None, 256, **of_classes()),
    "classes, by columns, autocast": classes(None, columns=True, **of_classes()),
    "classes, as they are, autocast": classes(None, normalize_proxies=False, **of_classes()),
    "classes, softmax, long rows": classes(BF16, 256, pooling="softmax", **of_classes()),
    "classes, softmax, odd long rows, autocast": classes(None, 201, pooling="softmax", **of_classes()),
    "classes, softmax, by columns": classes(F32, pooling="softmax", columns=True, **of_classes()),
    "classes, fp32": classes(F32, products="highest", **of_classes()),
    "classes, softmax, fp32": classes(F32, pooling="softmax", products="highest", **of_classes()),
    **{
        f"classes, {pooling}, a weighted sum": classes(BF16, pooling=pooling, scale=16.0, logit_weights=zeros(512))
        for pooling in ("none", "max", "softmax")
    },
    **{
        f"classes, {pooling}, observed": classes(BF16, pooling=pooling, observed=True, **of_classes())
        for pooling in ("none", "softmax")
    },
    "terms, bf16, observed": classes(BF16, 512, observed=True),
    "terms, bf16": classes(BF16, 512, exclude_target=True),
    "terms, autocast": classes(None),
    "terms, bf16, odd sizes": classes(BF16, 201, 99),
    "terms, fp32": classes(F32, 512),
    "terms, fp32, odd batch": classes(F32, 512, 99),
    "step of Proxy-Anchor, bf16": step(losses.ProxyAnchorLoss, BF16),
    "step of Proxy-Anchor, bf16, large": step(losses.ProxyAnchorLoss, BF16, 512, 1024),
    "step of Proxy-Anchor, autocast": step(losses.ProxyAnchorLoss, None, 128, 1024),
    "step of Proxy-Anchor, autocast, odd": step(losses.ProxyAnchorLoss, None, 99, 99, 501, weighted=True),
    "step of Proxy-Anchor, fp32": step(losses.ProxyAnchorLoss, F32, 512, products="highest", weighted=True),
    "step of softmax, bf16": step(losses.NormalizedSoftmaxLoss, BF16),
    "step of softmax, autocast": step(losses.NormalizedSoftmaxLoss, None, 512, weighted=True),
    "step of softmax, autocast, odd": step(losses.CosFaceLoss, None, 99, 99, 501),
    "step of ArcFace, bf16": step(losses.ArcFaceLoss, BF16),
    "step of ArcFace, margins of classes": step(losses.ArcFaceLoss, None, 99, 99, 501, margin=torch.rand(501)),
    "step of AdaFace, autocast": step(losses.AdaFaceLoss, None, 512, weighted=True),
    "step of Proxy-NCA, fp32": step(losses.ProxyNCALoss, F32, include_positive=False, products="highest"),
    "pairs of a bank": weighted(65_536),
    "pairs of a bank, shifted": weighted(65_536, alpha=1000.0),
    "pairs of a batch": pairs(partial(losses.MultiSimilarityLoss, epsilon=0.1), 1024, bank=False),
    "pairs in one part": weighted(2048),
    "pairs of an odd number": weighted(9999),
    "pairs, fp64, shifted": weighted(64, F64, 1000.0),
    "contrast outside": pairs(losses.SupConLoss, 2048, bank=False),
    "contrast inside": pairs(partial(losses.SupConLoss, form="inside"), 2048, bank=False),
    "contrast inside, fp64": pairs(partial(losses.SupConLoss, form="inside"), 512, F64, bank=False),
    "contrast of each positive": pairs(losses.NTXentLoss, 2048, bank=False),
    "contrast of logistic losses": towers(losses.SigmoidLoss, 2048),
    "contrast both ways": towers(losses.InfoNCELoss, 2048),
    "hinges of a bank": pairs(partial(losses.ContrastiveLoss, 0.9, 0.1, distance="cosine"), 65_536),
    "several labels and ids": related(losses.NTXentLoss, 2048),
    "several labels and ids, sums": related(partial(losses.MultiSimilarityLoss, epsilon=0.1), 2048),
    "several labels and ids, fp64": related(losses.ContrastiveLoss, 256, F64),
    "both ways with ids": towers(losses.InfoNCELoss, 2048, sample_ids=labels(2048), other_ids=labels(2048)),
    "hardest pairs, log-sum-exps": observed(losses.MultiSimilarityLoss, 1024),
    "hardest pairs, log-sum-exps, mined": observed(partial(losses.MultiSimilarityLoss, epsilon=0.1), 1024),
    "hardest pairs, log-sum-exps in parts": observed(losses.MultiSimilarityLoss, 64),
    "hardest pairs, distances": observed(losses.ContrastiveLoss, 1024),
    "hardest pairs, contrast": observed(losses.NTXentLoss, 2048),
    "distances of a bank": pairs(losses.ContrastiveLoss, 65_536),
    "distances of a batch": pairs(losses.ContrastiveLoss, 1024, bank=False),
    "distances of a batch, fp64": pairs(losses.ContrastiveLoss, 256, F64, bank=False),
    "cosines, bf16": similar(BF16),
    "cosines, bf16, odd sizes": similar(BF16, B=99, C=11_318),
    "cosines, bf16, odd rows": similar(BF16, F32, 99),
    "cosines, bf16, odd rows that lie apart": similar(BF16, F32, 99, apart=True),
    "cosines, bf16, by columns": similar(BF16, columns=True),
    "cosines, bf16, short rows": similar(BF16, F32, 24),
    "cosines, fp16, long rows": similar(F16, None, 768),
    "cosines, tf32": similar(F32, None, 512),
    "cosines, tf32, odd sizes": similar(F32, None, 99, B=99, C=1001),
    "cosines, fp32": similar(F32, products="highest"),
    "rows, fp32 to bf16": rows(128, F32, BF16),
    "rows, fp32 to bf16, by columns": rows(128, F32, BF16, columns=True),
    "rows, odd, by columns": rows(99, F32, F32, columns=True),
    "rows, long, fp64": rows(2048, F64, F64),
    "scale, bf16 of odd number": lambda: ROWS.scale(zeros(99_999, dtype=BF16), torch.ones((), device=META)),
    **{
        f"{function.__name__}, {name}": bessel(function, order, dtype)
        for name, dtype in SUMS.items()
        for order, functions in (
            (21, (ops.vmf_log_normalizer, ops.vmf_log_peak)),
            (9.5, (ops.log_bessel_i, ops.bessel_ratio)),
        )
        for function in functions
    },
    **{f"fit, {dim}, {name}": fit(dim, dtype) for dim in (2, 128) for name, dtype in SUMS.items()},
    **{f"Lambert's W, {name}": lambert_w(dtype) for name, dtype in SUMS.items()},
    "otsu, fp64": otsu(250, F64),
    "otsu": otsu(256),
    "otsu, long": otsu(TRITON_LONGEST),
    "bank, bf16": stored(512, BF16, 50_000),
    "bank, fp64": stored(600, F64, 50_000),
    **{f"filter, vmf, {name}": filtered(dtype) for name, dtype in SUMS.items()},
}
SHORT = (
    "anchors, autocast",
    "anchors, bf16, long rows",
    "confidences, tf32, long rows",
    "classes, softmax, tf32",
    "terms, bf16",
    "step of Proxy-Anchor, autocast, odd",
    "step of softmax, bf16",
    "pairs of a bank",
    "contrast both ways",
    "distances of a batch",
    "several labels and ids",
    "cosines, bf16",
    "rows, fp32 to bf16",
    "bessel_ratio, fp32",
    "Lambert's W, fp32",
    "otsu, fp64",
    "bank, bf16",
    "filter, vmf, fp32",
)
FUSED = {"fused_class_lse", "fused_terms", "similarity"}  # they multiply themselves


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("name", nightly_but(SHORT, CALLS))
@pytest.mark.usefixtures("as_in_training", "exact_products")
def test_compiles_without_spills_within_shared_memory(name, architecture, tmp_path):
    exact = name.endswith(("fp32", "fp64"))
    compiled = compiled_for(architecture, name)
    assert compiled
    for kernel in compiled:
        check(*kernel, architecture, tmp_path, set() if exact else FUSED)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize(
    ("name", "alone", "most"),
    [
        ("step of Proxy-Anchor, autocast", 10, 24),
        ("step of Proxy-Anchor, bf16, large", 13, 26),
        pytest.param("anchors, autocast", 14, 27, marks=pytest.mark.nightly),
        pytest.param("anchors, fp32", 16, 30, marks=pytest.mark.nightly),
    ],
)
@pytest.mark.usefixtures("as_in_training")
def test_instructions_an_element(name, alone, most, architecture, tmp_path):
    """The sums and the gradient of rows without a positive, ``alone``, and of others.

    The epilogue is bound by them: at 68 an element it would take longer than the products at C = 10⁶.
    """
    kernel = dict(compiled_for(architecture, name))["anchor_lse"]
    found = [loop for loop in loops(kernel, tmp_path) if any("MUFU.EX2" in instruction for instruction in loop)]
    sums, sums_alone, _, gradient, gradient_alone = found  # between them the sums of rows that overflow
    parameters = epilogue_launch(1024, F32, True, False, tile_of("anchor_lse", torch.empty(0)))
    a_thread = parameters["BLOCK_C"] * parameters["BLOCK_B"] / (32 * parameters["num_warps"])
    assert all(any("STG" in instruction for instruction in loop) for loop in (gradient, gradient_alone))
    assert not any("SHFL" in instruction for instruction in (*sums, *sums_alone))
    assert 5 < (len(sums_alone) + len(gradient_alone)) / a_thread <= alone
    assert 10 < (len(sums) + len(gradient)) / a_thread <= most
    if name.startswith("step"):
        assert not any("BAR" in instruction for instruction in (*sums_alone, *gradient_alone))


@pytest.mark.usefixtures("as_in_training")
def test_a_slot_is_read_before_any_thread_writes_it():
    code = dict(compiled_for(90, "bank, bf16"))["assign_slots"].asm["ttgir"]
    before, _ = code.split("barrier")
    assert "%old_label" in before
    assert before.count("tt.store") == 4  # touched, of both labels, source and serials; then come the slots'


@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("kernel", ["normalize_rows", "subtract_radial"])
@pytest.mark.usefixtures("as_in_training")
def test_rows_are_read_by_vectors_in_both_layouts(kernel, columns):
    """Of W (D, C) the elements of a column lie side by side."""
    call = step(losses.NormalizedSoftmaxLoss if columns else losses.ProxyNCALoss, BF16, C=512)
    with compiling(90) as compiled:
        call()
    found = [one.asm["ptx"] for name, one in compiled if name == kernel]
    assert found
    for code in found:
        loads = [line for line in code.splitlines() if "ld.global" in line]
        wide = [line for line in loads if ".v4" in line or ".v2" in line or ".b64" in line]
        assert any(".v4" in line for line in loads), loads[:5]
        assert not any("ld.global.b16" in line for line in loads), (len(loads), len(wide))
