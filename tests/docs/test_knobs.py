"""The formulas that docs/knobs.md draws are those of `python_ref`, and the page draws."""

import json
import math
import re
import shutil
import subprocess

import pytest
import torch

from python_ref import (
    angular_margin,
    arcface_loss,
    confidence,
    cosface_loss,
    lambert_w,
    otsu_threshold,
    proxy_anchor_loss,
    smooth_proxy_anchor_loss,
    smooth_weights,
    vmf_log_posterior,
)
from tests.docs.blocks import ROOT

SCRIPTS = ROOT / "docs" / "assets" / "knobs"
SIMILARITIES = [[0.3], [-1.0, 0.2], [0.99, 0.1, -0.5, 0.1], [1.0]]
ANGLES = [0.01, 0.4, 1.3, 2.2, 2.9, 3.1]


@pytest.fixture(scope="module")
def formulas():
    """Call of a list of functions in the page's JavaScript: names and arguments to results."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")

    def call(calls):
        program = (
            f"const f = require({json.dumps(str(SCRIPTS / 'formulas.js'))});"
            "const calls = JSON.parse(require('fs').readFileSync(0));"
            "console.log(JSON.stringify(calls.map(([name, args]) => String(f[name](...args)))));"
        )
        done = subprocess.run(
            [node, "-e", program], input=json.dumps(calls), text=True, capture_output=True, check=True
        )
        return torch.tensor([float(value.replace("Infinity", "inf")) for value in json.loads(done.stdout)]).double()

    return call


def _close(found, expected):
    torch.testing.assert_close(found, torch.as_tensor(expected, dtype=torch.float64), rtol=1e-6, atol=1e-9)


def _beside(similarities):
    """Unit vectors (n, 2) that have these cosines with (1, 0)."""
    s = torch.as_tensor(similarities, dtype=torch.float64)
    return torch.stack([s, (1 - s**2).clamp(min=0).sqrt()], -1)


@pytest.mark.parametrize(("alpha", "margin"), [(32, 0.1), (1, 0.0), (64, 0.5)])
def test_proxy_anchor(formulas, alpha, margin):
    proxies = torch.eye(2, dtype=torch.float64)
    calls, expected = [], []
    for s in SIMILARITIES:
        X, ones = _beside(s), [1.0] * len(s)
        # To proxy 0 all are positives, of which there is one proxy, or all are negatives, of which there are two.
        for sign, label, divisor in ((-1, 0, 1), (1, 1, 2)):
            y = torch.full((len(s),), label)
            terms = proxy_anchor_loss(X, proxies, y, alpha, margin, reduction="none")
            calls.append(["anchorTerm", [s, ones, alpha, margin, sign]])
            expected.append(divisor * float(terms[0]))
    _close(formulas(calls), expected)


def test_gradient_of_proxy_anchor(formulas):
    calls, expected = [], []
    for s in [[0.3], [-0.9, 0.2], [0.9, 0.1, -0.5, 0.1]]:
        for sign, label, divisor in ((-1, 0, 1), (1, 1, 2)):
            similarities = torch.tensor(s, dtype=torch.float64, requires_grad=True)
            y = torch.full((len(s),), label)
            terms = proxy_anchor_loss(_beside(similarities), torch.eye(2).double(), y, reduction="none")
            (gradient,) = torch.autograd.grad(divisor * terms[0], similarities)
            calls.append(["anchorGradient", [s, [1.0] * len(s), 32, 0.1, sign]])
            expected.append(float(gradient[0]))
    _close(formulas(calls), expected)


def test_smooth_proxy_anchor(formulas):
    c = torch.tensor([0.05, 0.099, 0.101, 0.4, 1.0], dtype=torch.float64)
    _close(formulas([["smoothWeight", [float(x), 100, 0.1]] for x in c]), smooth_weights(c))
    s, proxy = [0.3, -0.2], torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    for sign, certain in ((-1, torch.tensor([0.11, 0.5])), (1, torch.tensor([0.09, 0.01]))):
        w = smooth_weights(certain.double())
        weights = w if sign < 0 else 1 - w
        expected = smooth_proxy_anchor_loss(_beside(s), proxy, certain.double()[:, None])
        _close(formulas([["anchorTerm", [s, weights.tolist(), 32, 0.1, sign]]]), [float(expected)])


@pytest.mark.parametrize(("scale", "other", "others"), [(16, 0.0, 999), (1, 0.5, 2), (64, -0.4, 30)])
def test_margins(formulas, scale, other, others):
    """One sample, its class at some angle, and others that all have one cosine with it."""
    X, y = torch.eye(3, dtype=torch.float64)[:1], torch.zeros(1, dtype=torch.int64)
    rest = torch.tensor([[other, 0.0, math.sqrt(1 - other**2)]], dtype=torch.float64).repeat(others, 1)
    for move, argument, loss in (("cosfaceMargin", 0.35, cosface_loss), ("arcfaceMargin", 28.6, arcface_loss)):
        cosines = [math.cos(angle) for angle in ANGLES]
        moved = formulas([[move, [c, argument]] for c in cosines])
        if move == "arcfaceMargin":
            _close(moved, angular_margin(torch.tensor(cosines, dtype=torch.float64), math.radians(argument)))
        labels = [torch.tensor([[math.cos(a), math.sin(a), 0.0]], dtype=torch.float64) for a in ANGLES]
        expected = [float(loss(X, y, torch.cat([w, rest]), argument, scale)) for w in labels]
        _close(formulas([["softmaxLoss", [float(c), other, others, scale]] for c in moved]), expected)
        pulls = [scale * (1 - math.exp(-value)) for value in expected]
        _close(formulas([["softmaxPull", [float(c), other, others, scale]] for c in moved]), pulls)


@pytest.mark.parametrize("kappa", [5.0, 100.0])
def test_posterior_of_von_mises_fisher(formulas, kappa):
    """A sample's cosines with its class, with another, and with eight that are at right angles to it."""
    means = torch.eye(10, dtype=torch.float64)
    x = torch.zeros(1, 10, dtype=torch.float64)
    x[0, 0], x[0, 1] = 0.6, 0.8
    expected = vmf_log_posterior(x, means, torch.full((10,), kappa, dtype=torch.float64))[0]
    right = ["logPosterior", [[0.6 * kappa, 0.8 * kappa, 0], [1, 1, 8]]]
    wrong = ["logPosterior", [[0, 0.8 * kappa, 0.6 * kappa, 0], [1, 1, 1, 7]]]
    _close(formulas([right, wrong]), [float(expected[0]), float(expected[2])])


def test_otsu_and_confidence(formulas):
    batches = [torch.randn(n, dtype=torch.float64).exp() for n in (4, 5, 64)]
    batches += [
        torch.tensor([1.0, 1, 1, 1, 5]).double(),
        torch.ones(6).double(),
        torch.tensor([5.0, 0, 1, 4, 1]).double(),
    ]
    _close(formulas([["otsuThreshold", [batch.tolist()]] for batch in batches]), [otsu_threshold(b) for b in batches])
    x = torch.tensor([0.0, 1e-6, 0.3, 1, 40, 1e6], dtype=torch.float64)
    _close(formulas([["lambertW", [float(value)]] for value in x]), lambert_w(x))
    expected = confidence(x[:5], 0.5, 0.3)
    _close(formulas([["confidence", [float(value), 0.5, 0.3]] for value in x[:5]]), expected)


def test_every_panel_has_its_place():
    page = (ROOT / "docs" / "knobs.md").read_text()
    drawn = re.findall(r'panel\("([\w-]+)"', (SCRIPTS / "panels.js").read_text())
    assert drawn == re.findall(r'<div id="([\w-]+)">', page)
    assert re.findall(r'<script src="([^"]+)"', page) == [
        f"assets/knobs/{n}.js" for n in ("formulas", "plot", "panels")
    ]


def test_the_page_draws_in_a_browser(tmp_path):
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    if browser is None:
        pytest.skip("chromium is not installed")
    body = "\n".join(line for line in (ROOT / "docs" / "knobs.md").read_text().splitlines() if line.startswith("<"))
    page = tmp_path / "knobs.html"
    page.write_text(f"<!doctype html><meta charset=utf-8>{body.replace('assets/', f'file://{ROOT}/docs/assets/')}")
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=1000", "--dump-dom"]
    command += [f"--user-data-dir={tmp_path}/profile", page.as_uri()]
    dom = subprocess.run(command, capture_output=True, text=True, timeout=120).stdout
    assert dom.count("<svg") == 9 and dom.count("<polyline") >= 13 and "NaN" not in dom
