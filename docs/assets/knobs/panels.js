// The panels of docs/knobs.md: which knobs there are, and what is drawn of their values.
"use strict";

const range = (low, high, count) => Array.from({ length: count + 1 }, (_, i) => low + ((high - low) * i) / count);
const highest = (lines) => Math.max(1e-3, ...lines.flatMap(({ points }) => points.map(([, value]) => value)));
const ranged = (lines, label) => ({ label, range: [0, highest(lines) * 1.05] });
const COSINES = range(-1, 1, 200);
const COSINE = { label: "similarity s of the sample and the proxy", range: [-1, 1] };

// One proxy with a positive and a negative, and further samples beside each, of one similarity.
function anchorPanel() {
  const knobs = {
    alpha: { label: "scale α", range: [1, 64], step: 1, value: 32 },
    margin: { label: "margin δ", range: [0, 0.5], step: 0.01, value: 0.1 },
    beside: { label: "samples beside it", range: [0, 10], step: 1, value: 0 },
    other: { label: "their similarity", range: [-1, 1], step: 0.05, value: 0 },
  };
  const sides = [["as a positive", -1], ["as a negative", 1]];
  const curve = (formula, { alpha, margin, beside, other }) => sides.map(([name, sign], colour) => {
    const weights = Array(beside + 1).fill(1);
    const value = (s) => Math.abs(formula([s, ...Array(beside).fill(other)], weights, alpha, margin, sign));
    return { name, colour, points: COSINES.map((s) => [s, value(s)]) };
  });
  const plots = (values) => {
    const losses = curve(anchorTerm, values);
    const pulls = curve(anchorGradient, values);
    return [
      { title: "Loss term of the proxy", x: COSINE, y: ranged(losses), lines: losses },
      { title: "Gradient |∂/∂s| of the sample", x: COSINE, y: { range: [0, values.alpha * 1.05] }, lines: pulls },
    ];
  };
  const words = ({ alpha, margin, beside, other }) => {
    const gradient = anchorGradient([0.1, ...Array(beside).fill(other)], Array(beside + 1).fill(1), alpha, margin, 1);
    return `A negative at s = 0.1 has ${((100 * gradient) / alpha).toFixed(1)} % of the largest gradient, α.`;
  };
  panel("knobs-anchor", knobs, plots, words);
}

// Smooth Proxy-Anchor: the side and the weight of a sample by its confidence.
function smoothPanel() {
  const knobs = {
    beta: { label: "steepness β", range: [1, 200], step: 1, value: 100 },
    threshold: { label: "threshold λ", range: [0.01, 0.9], step: 0.01, value: 0.1 },
    alpha: { label: "scale α", range: [1, 64], step: 1, value: 32 },
    s: { label: "similarity s", range: [-1, 1], step: 0.05, value: 0.1 },
  };
  const confidences = range(0, 1, 200);
  const plots = ({ beta, threshold, alpha, s }) => {
    const side = (c) => (c > threshold ? -1 : 1);
    const positive = (c) => smoothWeight(c, beta, threshold);
    const weight = (c) => (c > threshold ? positive(c) : 1 - positive(c));
    const part = (name, colour, sign, value) => ({
      name, colour, points: confidences.filter((c) => side(c) === sign).map((c) => [c, value(c, sign)]),
    });
    const both = (value) => [part("as a positive", 0, -1, value), part("as a negative", 1, 1, value)];
    const pull = (c, sign) => Math.abs(anchorGradient([s], [weight(c)], alpha, 0.1, sign));
    const x = { label: "confidence c that the sample is of the class", range: [0, 1] };
    const marks = [{ at: threshold, label: "λ" }];
    return [
      { title: "Weight in its set", x, y: { range: [0, 1.05] }, lines: both(weight), marks },
      { title: "Gradient |∂/∂s|, δ = 0.1", x, y: { range: [0, alpha * 1.05] }, lines: both(pull), marks },
    ];
  };
  const words = () => "No weight is below ½: at the threshold a sample changes sides, it does not fade out.";
  panel("knobs-smooth", knobs, plots, words);
}

// Softmax, CosFace, ArcFace: the label's angle, and others that all have one cosine.
function marginPanel() {
  const knobs = {
    scale: { label: "scale s", range: [1, 64], step: 1, value: 16 },
    cosface: { label: "CosFace's margin", range: [0, 0.8], step: 0.01, value: 0.35 },
    arcface: { label: "ArcFace's margin, degrees", range: [0, 80], step: 0.5, value: 28.5 },
    classes: { label: "classes", range: [0.5, 6], step: 0.5, value: 3, power: true },
    other: { label: "cosine with the others", range: [-0.5, 0.9], step: 0.05, value: 0 },
  };
  const degrees = range(0, 180, 180);
  const plots = ({ scale, cosface, arcface, classes, other }) => {
    const cosine = (angle) => Math.cos((angle * Math.PI) / 180);
    const moved = {
      softmax: (c) => c,
      CosFace: (c) => cosfaceMargin(c, cosface),
      ArcFace: (c) => arcfaceMargin(c, arcface),
    };
    const curve = (formula) => Object.entries(moved).map(([name, move], colour) => ({
      name, colour, points: degrees.map((angle) => [angle, formula(move(cosine(angle)), other, classes - 1, scale)]),
    }));
    const losses = curve(softmaxLoss);
    const x = { label: "angle of the sample and its class, degrees", range: [0, 180] };
    return [
      { title: "Loss", x, y: ranged(losses), lines: losses },
      { title: "Pull on the label's logit, s (1 − P)", x, y: { range: [0, scale * 1.05] }, lines: curve(softmaxPull) },
    ];
  };
  const words = ({ scale, classes, other }) => {
    const right = Math.exp(-softmaxLoss(1, other, classes - 1, scale));
    return `Without a margin the label's probability is ${right.toFixed(4)} at best, where the sample lies on its class.`;
  };
  panel("knobs-margin", knobs, plots, words);
}

// Normal deviates that are the same at each move: the middles of equal shares, in a scattered order.
function normals(count) {
  return Array.from({ length: count }, (_, i) => {
    const u = (i + 0.5) / count;
    const v = ((i * 0.6180339887) % 1) + 0.5 / count;
    return Math.sqrt(-2 * Math.log(u)) * Math.cos(2 * Math.PI * v);
  });
}

function histogram(values, [low, high], count) {
  const width = (high - low) / count;
  const heights = Array(count).fill(0);
  for (const value of values) heights[Math.max(0, Math.min(count - 1, Math.floor((value - low) / width)))] += 1;
  return heights.map((height, i) => ({ from: low + i * width, to: low + (i + 1) * width, height }));
}

function rightAndWrong(right, wrong, span) {
  const groups = [["right labels", right], ["wrong labels", wrong]];
  return groups.flatMap(([name, values], colour) => {
    return histogram(values, span, 40).map((bar, i) => ({ ...bar, colour, name: i ? "" : name }));
  });
}

const counted = (bars) => ({ range: [0, 1.15 * Math.max(...bars.map(({ height }) => height))] });

// PRISM by vMF-Sim: classes of one concentration whose means are at right angles, so that only κ s counts.
function prismPanel() {
  const knobs = {
    kappa: { label: "concentration κ", range: [5, 400], step: 5, value: 40 },
    likeness: { label: "cosine with the own class", range: [0.05, 0.9], step: 0.05, value: 0.5 },
    spread: { label: "its spread", range: [0.01, 0.3], step: 0.01, value: 0.15 },
    wrong: { label: "wrong labels, percent", range: [0, 80], step: 5, value: 30 },
    classes: { label: "classes", range: [0.5, 6], step: 0.5, value: 3, power: true },
  };
  const count = 400;
  const deviates = normals(count);
  const plots = (values) => {
    const { right, wrong, cut } = prismScores(values, deviates);
    const span = [0, Math.max(2, ...right, ...wrong) * 1.02];
    const bars = rightAndWrong(right, wrong, span);
    const x = { label: "u = log(1 − log P_clean): 0 is surely clean", range: span };
    const marks = [{ at: cut, label: "Otsu's cut" }];
    return [{ title: "Samples of a batch", x, y: counted(bars), bars, marks }];
  };
  const words = (values) => {
    const { right, wrong, cut } = prismScores(values, deviates);
    const above = (scores) => scores.filter((score) => score > cut).length;
    const percent = (part, whole) => (whole ? `${((100 * part) / whole).toFixed(0)} %` : "none");
    return `Found of the wrong labels: ${percent(above(wrong), wrong.length)}. Right labels that are lost: ` +
      `${percent(above(right), right.length)}. Samples are kept where log P_clean > ${shown(1 - Math.exp(cut))}.`;
  };
  panel("knobs-prism", knobs, plots, words);
}

function prismScores({ kappa, likeness, spread, wrong, classes }, deviates) {
  const bad = Math.round((wrong / 100) * deviates.length);
  const scores = deviates.map((deviate, i) => {
    const own = kappa * Math.max(-1, Math.min(1, likeness + spread * deviate));
    const logP = i < bad ? logPosterior([0, own, 0], [1, 1, classes - 2]) : logPosterior([own, 0], [1, classes - 1]);
    return Math.log1p(-logP);
  });
  return { wrong: scores.slice(0, bad), right: scores.slice(bad), cut: otsuThreshold(scores) };
}

// ProcSim: losses in two groups, the cut between them, and the confidence that falls from there.
function procsimPanel() {
  const knobs = {
    lam: { label: "λ", range: [0.02, 3], step: 0.02, value: 0.3 },
    gap: { label: "losses of wrong labels are higher by", range: [0, 6], step: 0.1, value: 3 },
    spread: { label: "spread of both", range: [0.1, 2], step: 0.05, value: 0.6 },
    wrong: { label: "wrong labels, percent", range: [0, 80], step: 5, value: 30 },
  };
  const count = 400;
  const deviates = normals(count);
  const losses = ({ gap, spread, wrong }) => {
    const bad = Math.round((wrong / 100) * count);
    const all = deviates.map((deviate, i) => Math.max(0, 2 + spread * deviate + (i < bad ? gap : 0)));
    return { all, wrong: all.slice(0, bad), right: all.slice(bad) };
  };
  const plots = (values) => {
    const { all, wrong, right } = losses(values);
    const cut = otsuThreshold(all);
    const span = [0, Math.max(...all) * 1.02];
    const bars = rightAndWrong(right, wrong, span);
    const x = { label: "loss of the detector", range: span };
    const marks = [{ at: cut, label: "τ" }];
    const points = range(...span, 200).map((loss) => [loss, confidence(loss, cut, values.lam)]);
    return [
      { title: "Losses of a batch", x, y: counted(bars), bars, marks },
      { title: "Confidence", x, y: { range: [0, 1.05] }, lines: [{ name: "σ", colour: 2, points }], marks },
    ];
  };
  const words = (values) => {
    const { all, wrong, right } = losses(values);
    const cut = otsuThreshold(all);
    const mean = (part) => part.reduce((sum, loss) => sum + confidence(loss, cut, values.lam), 0) / part.length;
    const told = (part) => (part.length ? mean(part).toFixed(2) : "–");
    return `Mean confidence in right labels ${told(right)}, in wrong ones ${told(wrong)}.`;
  };
  panel("knobs-procsim", knobs, plots, words);
}

anchorPanel();
smoothPanel();
marginPanel();
prismPanel();
procsimPanel();
