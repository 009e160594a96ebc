"""Hostile arguments give a result, or an error of one line that names the argument, the value and a remedy."""

import inspect
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from robustdml_ops import losses, ops
from robustdml_ops.engine.validation import all_finite, check_finite_embeddings
from tests.every_call import EVERY, LOSSES, NO_LOSS, B, first, random

SEQUENTIAL = ("self_paced_descent", "self_paced_sweep")  # work on the host, value by value
SHAPED = [name for name in EVERY if name not in SEQUENTIAL]
INTEGER_KAPPA = ("bessel_ratio", "log_bessel_i", "vmf_log_normalizer", "vmf_log_peak")  # take any real numbers


def main_argument(call):
    """The first floating-point tensor among the inputs."""
    tensors = {name: value for name, value in call.inputs().items() if isinstance(value, torch.Tensor)}
    return next(name for name, value in tensors.items() if value.is_floating_point())


def gradients(call, function, inputs):
    """The first result and the gradients of what the call differentiates."""
    inputs = inputs | {name: inputs[name].requires_grad_() for name in call.differentiable}
    result = first(call(function, **inputs))
    leaves = [inputs[name] for name in call.differentiable]
    return result, torch.autograd.grad(result.sum(), leaves) if leaves else ()


@pytest.mark.parametrize("name", SHAPED)
def test_shapes_are_inferred_on_the_meta_device(name):
    call = EVERY[name]
    function = call.make()
    expected, _ = gradients(call, function, call.inputs())
    on_meta = function.to("meta") if name in LOSSES else function
    result, slopes = gradients(call, on_meta, call.on("meta"))
    assert all(tensor.is_meta for tensor in (result, *slopes))
    check_shapes(call, result, slopes, expected)


def check_shapes(call, result, slopes, expected):
    assert (result.shape, result.dtype) == (expected.shape, expected.dtype)
    assert [slope.shape for slope in slopes] == [call.inputs()[key].shape for key in call.differentiable]


@pytest.mark.parametrize("name", SHAPED)
def test_shapes_are_inferred_of_fake_tensors(name):
    call = EVERY[name]
    expected, _ = gradients(call, call.make(), call.inputs())
    torch.set_default_dtype(torch.float64)
    try:
        with FakeTensorMode():
            result, slopes = gradients(call, call.make(), call.inputs())
            with torch.no_grad():
                assert first(call()).shape == expected.shape
    finally:
        torch.set_default_dtype(torch.float32)
    check_shapes(call, result, slopes, expected)


@pytest.mark.parametrize("name", SHAPED)
def test_tensors_with_values_in_a_fake_mode(name):
    """Of a module and a batch made before the mode no kernel runs; PyTorch says which tensors it takes."""
    call = EVERY[name]
    function, inputs = call.make(), call.inputs()
    expected = first(call(function, **inputs))
    with torch.no_grad(), FakeTensorMode(allow_non_fake_inputs=True):
        result = first(call(function, **inputs))
    assert isinstance(result, FakeTensor)
    assert (result.shape, result.dtype) == (expected.shape, expected.dtype)
    with torch.no_grad(), FakeTensorMode(), pytest.raises(AssertionError, match="convert all Tensors to FakeTensors"):
        call(function, **inputs)


@pytest.mark.parametrize("name", SEQUENTIAL)
def test_sequential_work_needs_values(name):
    with pytest.raises(ValueError, match="weights is a meta or fake tensor"):
        EVERY[name](**EVERY[name].on("meta"))
    with FakeTensorMode(), pytest.raises(ValueError, match="weights is a meta or fake tensor"):
        EVERY[name]()


@pytest.mark.parametrize("name", LOSSES)
def test_built_on_the_meta_device(name):
    """Memory and values are given later, and the loss is that of a module built on the CPU."""
    call = LOSSES[name]
    ready = call.make()
    with torch.device("meta"):
        module = call.make()
    assert all(tensor.is_meta for tensor in module.state_dict().values())
    module.to_empty(device="cpu")
    module.load_state_dict(ready.state_dict())
    torch.testing.assert_close(call(module), call(ready))
    for parameter in module.parameters():
        torch.nn.init.uniform_(parameter.data, 0.1, 1)
    assert torch.isfinite(call(module))


KINDS = {
    "fp8": (lambda t: t.to(torch.float8_e4m3fn), r"float8_e4m3fn, a type to store .* pass {}\.bfloat16\(\)"),
    "fp8-e5m2": (lambda t: t.to(torch.float8_e5m2), r"float8_e5m2, a type to store .* pass {}\.bfloat16\(\)"),
    "sparse": (lambda t: t.to_sparse(), r"{} is of layout torch.sparse_coo.*pass {}\.to_dense\(\)"),
    "mkldnn": (lambda t: t.float().to_mkldnn(), r"{} is of layout torch._mkldnn.*pass {}\.to_dense\(\)"),
    "nested": (lambda t: torch.nested.nested_tensor([t[:3], t[3:]]), "{} is a nested tensor"),
    "jagged": (lambda t: torch.nested.nested_tensor([t[:3], t[3:]], layout=torch.jagged), "{} is a nested tensor"),
    "quantized": (lambda t: torch.quantize_per_tensor(t.float(), 0.1, 0, torch.qint8), r"{} .*(quantized|qint8)"),
    "complex": (lambda t: t.to(torch.complex64), "{} must be .*complex64"),
    "bool": (lambda t: t.bool(), "{} must be .*bool"),
    "list": (lambda t: t.tolist(), "{} must be .*list"),
    "numpy": (lambda t: t.numpy(), "{} must be .*ndarray"),
    "none": (lambda t: None, "{} must be .*NoneType"),
}


@pytest.mark.filterwarnings("ignore:.*prototype stage", "ignore:.*quantized tensor creation")
@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("kind", KINDS)
def test_tensors_of_another_kind(name, kind):
    call, (change, message) = EVERY[name], KINDS[kind]
    argument = main_argument(call)
    with pytest.raises((ValueError, TypeError), match=message.replace("{}", argument)):
        call(**{argument: change(call.inputs()[argument])})


@pytest.mark.parametrize("name", EVERY)
def test_integers_for_numbers(name):
    call = EVERY[name]
    argument = main_argument(call)
    if name in INTEGER_KAPPA:
        torch.testing.assert_close(call(kappa=torch.arange(4)), call(kappa=torch.arange(4.0)))
        return
    with pytest.raises((ValueError, TypeError), match=rf"{argument} must be .*int64"):
        call(**{argument: call.inputs()[argument].long()})


WRONG_LABELS = {
    "0-dim": lambda y: y[0],
    "one-hot": torch.nn.functional.one_hot,
    "list": torch.Tensor.tolist,
    "numpy": torch.Tensor.numpy,
    "none": lambda y: None,
    "short": lambda y: y[:-1],
    "sparse": torch.Tensor.to_sparse,
}


@pytest.mark.parametrize("name", [name for name in EVERY if "labels" in EVERY[name].inputs()])
@pytest.mark.parametrize("kind", WRONG_LABELS)
def test_labels_of_another_kind(name, kind):
    with pytest.raises((ValueError, TypeError), match=r"labels (must|is|are)|weights must be .* length") as raised:
        EVERY[name](labels=WRONG_LABELS[kind](EVERY[name].inputs()["labels"]))
    assert "\n" not in str(raised.value)


NUMBERS = [
    (name, parameter.name, parameter.annotation)
    for name in losses.__all__
    if name not in NO_LOSS
    for parameter in inspect.signature(getattr(losses, name)).parameters.values()
    if parameter.annotation in (int, float, float | None)
]
assert len(NUMBERS) > 30
SIZES = {"num_classes": 4, "embedding_size": 6}
POSITIVE = {"alpha", "beta", "concentration", "gamma", "la", "lam", "momentum", "scale", "softmax_scale", "temperature"}
NOT_NEGATIVE = POSITIVE | {"omega", "regularization", "regularizer_weight"}


def build(name, **changed):
    """The loss with ``changed`` settings, and sizes if it has proxies."""
    kind = getattr(losses, name)
    return kind(**(SIZES if "num_classes" in inspect.signature(kind).parameters else {}) | changed)


@pytest.mark.parametrize(("name", "setting", "kind"), NUMBERS)
def test_settings_that_are_no_numbers_or_out_of_range(name, setting, kind):
    wrong = ["0.1", [0.1], True, torch.ones(2), 1j, float("nan"), float("inf")]
    wrong += [10.0, -3, 0] if kind is int else []
    wrong += [0] * (setting in POSITIVE) + [-0.1] * (setting in NOT_NEGATIVE)
    for value in wrong:
        with pytest.raises((TypeError, ValueError), match=rf"^{setting} must ") as raised:
            build(name, **{setting: value})
        assert "\n" not in str(raised.value) or isinstance(value, torch.Tensor)


@pytest.mark.parametrize(("name", "setting", "kind"), NUMBERS)
def test_numbers_of_numpy_are_taken(name, setting, kind):
    default = inspect.signature(getattr(losses, name)).parameters[setting].default
    value = (SIZES | {"omega": 0.0}).get(setting, default or 0.5)
    types = (np.int64, np.int32) if kind is int else (np.float64, np.float32)
    call = LOSSES[name]
    inputs = call.inputs()
    if "labels" not in inputs and setting == "shift":
        inputs["labels"] = torch.arange(B) % 4
    for of_numpy in types:
        plain = of_numpy(value).item()  # 0.1 in float32 is another number
        torch.manual_seed(0)
        expected = build(name, **{setting: plain}).double()(**inputs)
        torch.manual_seed(0)
        inputs[call.differentiable[0]] = inputs[call.differentiable[0]].detach().requires_grad_()
        loss = build(name, **{setting: of_numpy(value)}).double()(**inputs)
        torch.testing.assert_close(loss, expected)
        loss.backward()


@pytest.mark.parametrize("name", [n for n in EVERY if any(isinstance(v, float) for v in EVERY[n].settings.values())])
def test_settings_of_ops_that_are_no_numbers(name):
    call = EVERY[name]
    for setting in [setting for setting, value in call.settings.items() if isinstance(value, float)]:
        value = call.settings[setting]
        for wrong in ("0.1", [0.1], True, 1j, None if setting != "epsilon" else "x"):
            with pytest.raises((TypeError, ValueError), match=rf"{setting} must ") as raised:
                call(**{setting: wrong})
            assert "\n" not in str(raised.value)
        torch.testing.assert_close(first(call(**{setting: np.float64(value)})), first(call()))


@pytest.mark.parametrize("name", [name for name in LOSSES if list(LOSSES[name].make().parameters())])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_parameters_that_are_not_finite(name, bad):
    """The message says which row, or which parameter."""
    call = LOSSES[name]
    module = call.make()
    with torch.no_grad():
        for parameter in module.parameters():
            flat = parameter.view(-1) if parameter.is_contiguous() else parameter.t().view(-1)
            flat[-2 if parameter.dim() == 2 else -1] = bad
    with pytest.raises(
        ValueError,
        match=r"(proxies\[3\]|row \d+ of the proxies) has NaN or inf|(mean\(margins\)|logit_scale) = (nan|inf)",
    ) as raised:
        call(module)
    assert "none" not in str(raised.value)


def test_a_logit_that_overflows_is_no_row_of_the_proxies():
    with pytest.raises(ValueError, match="is NaN or inf: a logit overflows"):
        ops.class_lse(random(B, 6), 1e200 * random(4, 6), torch.arange(B) % 4, scale=1e200, normalize_proxies=False)


# Found by random calls (tests/fuzz).
FOUND = [
    ("pair_lse", "embeddings", torch.ones(B, 0), "embeddings must have at least one column"),
    ("MultiSimilarityLoss", "embeddings", torch.ones(B, 0), "embeddings must have at least one column"),
    ("LanguageGuidanceLoss", "embeddings", torch.ones(B, 0), "embeddings must have at least one column"),
    ("LanguageGuidanceLoss", "text_embeddings", torch.ones(B, 2, 5).to_sparse(), "text_embeddings is of layout"),
    ("SuperLoss", "losses", torch.ones(B, device="meta"), "losses on meta, the running mean on cpu"),
    ("SuperContrastiveLoss", "embeddings", torch.ones(B, 6, device="meta"), "losses on meta, the running mean on cpu"),
    ("anchor_loss", "sets", None, r"sets must be LabelSets .* got NoneType: LabelSets\.of\(labels\)"),
    ("anchor_lse", "biases", 0, "biases must be AnchorBiases, got int"),
    ("anchor_loss", "positive_scale", 0.5, "positive_scale must be a torch.Tensor, not float"),
    ("anchor_loss", "negative_scale", torch.ones(4).to_sparse(), "negative_scale is of layout"),
    ("anchor_loss", "negative_scale", torch.tensor(torch.nan, dtype=torch.float64), "a scale"),
    ("pair_lse_sum", "positive_scale", "x", "positive_scale must be a torch.Tensor, not str"),
    ("pair_hinge_sum", "negative_scale", np.ones(B), "negative_scale must be a torch.Tensor, not ndarray"),
    ("fit_vmf", "counts", [9] * 4, "counts must be a torch.Tensor, not list"),
    ("vmf_log_likelihood", "kappa", torch.tensor([1.0, torch.inf, 1, 1]), r"kappa\[1\] = inf"),
    *[(name, "alpha", 10**400, "alpha must be in the range of float64") for name in ("anchor_lse", "pair_lse")],
    *[(name, "alpha", 1e39, "alpha must be at most 4.5e[+]15 in torch.float64") for name in ("anchor_lse", "pair_lse")],
    *[(name, "lam", 10**400, "lam must be a positive number") for name in ("confidence", "superloss")],
    ("confidence", "threshold", 10**400, "threshold must be in the range of float64"),
    ("superloss", "tau", Fraction(1, 3), "tau must be a number or a torch.Tensor, got Fraction"),
    ("self_paced_descent", "mu", Fraction(1, 3), r"mu must be a number, got Fraction.* pass float"),
]


@pytest.mark.parametrize(("name", "argument", "value", "message"), FOUND)
def test_what_random_calls_have_found(name, argument, value, message):
    with pytest.raises((ValueError, TypeError), match=message) as raised:
        EVERY[name](**{argument: value})
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_one_bad_value_is_found(dtype, bad):
    values = torch.ones(3, 4, dtype=dtype)
    assert all_finite(values)
    values[1, 2] = bad
    assert not all_finite(values)
    values[2, 0] = -bad  # two that cancel
    assert not all_finite(values)
    with pytest.raises(ValueError, match=r"embeddings\[1\] has NaN or inf"):
        check_finite_embeddings(values)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_a_sum_that_overflows_is_no_error(dtype):
    values = torch.full((300, 2), torch.finfo(dtype).max, dtype=dtype)
    assert not values.sum().isfinite()
    assert all_finite(values)
    assert all_finite(values[:0])
