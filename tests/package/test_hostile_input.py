"""Hostile arguments give a result, or an error of one line that names the argument, the value and a remedy."""

import inspect

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from robustdml_ops import losses, ops
from robustdml_ops.engine.validation import all_finite, check_finite_embeddings
from tests.every_call import EVERY, LOSSES, NO_LOSS, B, first, random
from tests.fuzz import hostile
from tests.package.test_every_call import SEQUENTIAL

SHAPED = [name for name in EVERY if name not in SEQUENTIAL]


@pytest.mark.parametrize("name", SHAPED)
def test_shapes_are_inferred_on_the_meta_device(name):
    call = EVERY[name]
    function = call.make()
    expected = first(call(function))
    on_meta = function.to("meta") if name in LOSSES else function
    result, slopes = call.differentiated(on_meta, call.on("meta"))
    assert all(tensor.is_meta for tensor in (result, *slopes))
    check_shapes(call, result, slopes, expected)


def check_shapes(call, result, slopes, expected):
    assert (result.shape, result.dtype) == (expected.shape, expected.dtype)
    assert [slope.shape for slope in slopes] == [call.inputs()[key].shape for key in call.differentiable]


@pytest.mark.parametrize("name", SHAPED)
def test_shapes_are_inferred_of_fake_tensors(name):
    call = EVERY[name]
    expected = first(call())
    torch.set_default_dtype(torch.float64)
    try:
        with FakeTensorMode():
            result, slopes = call.differentiated(call.make(), call.inputs())
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


@pytest.mark.parametrize("name", hostile.INTEGER_KAPPA)
def test_integers_are_real_numbers(name):
    torch.testing.assert_close(EVERY[name](kappa=torch.arange(4)), EVERY[name](kappa=torch.arange(4.0)))


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
MAY_BE_0 = {"negative_seed", "first_embeddings"}
NOT_NEGATIVE = POSITIVE | {"omega", "regularization", "regularizer_weight"}


def build(name, **changed):
    """The loss with ``changed`` settings, and sizes if it has proxies."""
    kind = getattr(losses, name)
    return kind(**(SIZES if "num_classes" in inspect.signature(kind).parameters else {}) | changed)


@pytest.mark.parametrize(("name", "setting", "kind"), NUMBERS)
def test_settings_that_are_no_numbers_or_out_of_range(name, setting, kind):
    wrong = ["0.1", [0.1], True, torch.ones(2), 1j, float("nan"), float("inf")]
    wrong += [10.0, -3] + [0] * (setting not in MAY_BE_0) if kind is int else []
    wrong += [0] * (setting in POSITIVE) + [-0.1] * (setting in NOT_NEGATIVE)
    for value in wrong:
        with pytest.raises((TypeError, ValueError), match=rf"^{setting} must ") as raised:
            build(name, **{setting: value})
        assert "\n" not in str(raised.value) or isinstance(value, torch.Tensor)


@pytest.mark.parametrize(("name", "setting", "kind"), NUMBERS)
def test_numbers_of_numpy_are_taken(name, setting, kind):
    default = inspect.signature(getattr(losses, name)).parameters[setting].default
    default = (0 if kind is int else 0.5) if default is None else default
    value = (SIZES | {"omega": 0.0, "max_scale": 100.0}).get(setting, default or (0 if kind is int else 0.5))
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
@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_parameters_that_are_not_finite(name, bad, reduction, backend):
    """The message says which row, or which parameter."""
    call = LOSSES[name]
    module = call.make()
    module.reduction, module.backend = reduction, backend
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
