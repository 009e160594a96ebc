// The formulas of docs/knobs.md: those of python_ref, for numbers. tests/docs/test_knobs.py holds them against it.
"use strict";

// log(1 + Σ e^z) for exponents z of any size.
function logOnePlusSum(exponents) {
  const largest = Math.max(0, ...exponents);
  const rest = exponents.reduce((sum, z) => sum + Math.exp(z - largest), 0);
  return largest + Math.log(Math.exp(-largest) + rest);
}

// Proxy-Anchor, both terms of one proxy, before the division by |P⁺| and |P|: sign −1 for positives, +1 for negatives.
// `weights` are the w (or 1 − w) of Smooth Proxy-Anchor, 1 in Proxy-Anchor.
function anchorTerm(similarities, weights, alpha, margin, sign) {
  return logOnePlusSum(anchorExponents(similarities, weights, alpha, margin, sign));
}

function anchorExponents(similarities, weights, alpha, margin, sign) {
  return similarities.map((s, i) => sign * alpha * (s + sign * margin) + Math.log(weights[i]));
}

// Its derivative by the first similarity: ∓α q, with q the sample's share in the sum.
function anchorGradient(similarities, weights, alpha, margin, sign) {
  const exponents = anchorExponents(similarities, weights, alpha, margin, sign);
  return sign * alpha * Math.exp(exponents[0] - logOnePlusSum(exponents));
}

// Smooth Proxy-Anchor, Eq. 7.
function smoothWeight(confidence, beta, threshold) {
  return 1 / (1 + Math.exp(-beta * (confidence - threshold)));
}

// The label's cosine with a margin. ArcFace's is in degrees, and a straight line where cos(θ + m) would rise again.
function cosfaceMargin(cosine, margin) {
  return cosine - margin;
}

function arcfaceMargin(cosine, degrees) {
  const margin = (degrees * Math.PI) / 180;
  const angle = Math.acos(cosine);
  return angle <= Math.PI - margin ? Math.cos(angle + margin) : cosine - margin * Math.sin(margin);
}

// −log of the label's softmax: `moved` is its cosine with a margin, and each of `others` classes has the cosine `other`.
function softmaxLoss(moved, other, others, scale) {
  return logOnePlusSum([Math.log(others) + scale * (other - moved)]);
}

// How hard the label's cosine is pulled: minus the derivative by `moved`, which is s (1 − P).
function softmaxPull(moved, other, others, scale) {
  return scale * (1 - Math.exp(-softmaxLoss(moved, other, others, scale)));
}

// log P(label) of a softmax over scores, of which each stands `counts` times; the label is the first, which counts once.
function logPosterior(scores, counts) {
  return -logOnePlusSum(scores.slice(1).map((score, i) => score - scores[0] + Math.log(counts[i + 1])));
}

// Otsu's cut: the midpoint of sorted neighbours that leaves the least variance in the two groups; ∞ if there is none.
function otsuThreshold(values, minGroup = 2) {
  const ordered = [...values].sort((a, b) => a - b);
  const n = ordered.length;
  const total = ordered.reduce((sum, value) => sum + value, 0);
  let low = 0;
  let best = { between: 0, threshold: Infinity };
  for (let i = 1; i < n; i++) {
    low += ordered[i - 1];
    const between = (n * low - i * total) ** 2 / (i * (n - i));
    const parts = ordered[i - 1] < ordered[i] && i >= minGroup && n - i >= minGroup;
    if (parts && between > best.between * (1 + 1e-12)) best = { between, threshold: (ordered[i - 1] + ordered[i]) / 2 };
  }
  return best.threshold;
}

// The principal branch of Lambert's W for x ≥ 0, by Halley's iteration.
function lambertW(x) {
  let w = Math.log1p(x);
  for (let i = 0; i < 20; i++) {
    const e = Math.exp(w);
    const f = w * e - x;
    w -= f / (e * (w + 1) - ((w + 2) * f) / (2 * w + 2));
  }
  return w;
}

// ProcSim's confidence, Eq. 3.
function confidence(loss, threshold, lam) {
  return Math.exp(-lambertW(Math.max(0, loss - threshold) / (2 * lam)));
}

if (typeof module !== "undefined") {
  module.exports = {
    anchorTerm, anchorGradient, smoothWeight, cosfaceMargin, arcfaceMargin, softmaxLoss, softmaxPull, logPosterior,
    otsuThreshold, lambertW, confidence,
  };
}
