// Plots in plain SVG: lines and bars over two axes, with a legend. Colours are those of the page's theme.
"use strict";

const WIDTH = 440;
const HEIGHT = 270;
const FRAME = { left: 52, right: 12, top: 12, bottom: 40 };
const COLOURS = ["#0072B2", "#CC3311", "#009E73", "#E69F00"];

function element(name, attributes, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

// Some five round numbers from `low` to `high`.
function ticks(low, high) {
  const rough = (high - low) / 5;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough);
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + 1e-9; i++) found.push(i * step);
  return found;
}

const shown = (value) => String(Number(value.toPrecision(3)));

// `plot` has title, x and y ({label, range}), and any of lines ({name, colour, points}), bars ({name, colour, from, to,
// height}) and marks ({at, label}).
function draw(plot) {
  const [x0, x1] = plot.x.range;
  const [y0, y1] = plot.y.range;
  const x = (value) => FRAME.left + ((value - x0) / (x1 - x0)) * (WIDTH - FRAME.left - FRAME.right);
  const y = (value) => HEIGHT - FRAME.bottom - ((value - y0) / (y1 - y0)) * (HEIGHT - FRAME.top - FRAME.bottom);
  const size = { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "knobs-plot" };
  const svg = element("svg", { ...size, role: "img", "aria-label": plot.title });
  axes(svg, plot, x, y);
  for (const bar of plot.bars ?? []) {
    const height = y(0) - y(Math.min(bar.height, y1));
    const place = { x: x(bar.from), y: y(0) - height, width: x(bar.to) - x(bar.from) - 1, height };
    svg.append(element("rect", { ...place, fill: COLOURS[bar.colour], "fill-opacity": 0.6 }));
  }
  (plot.lines ?? []).forEach((line) => {
    const inside = line.points.filter(([, value]) => Number.isFinite(value));
    const cut = (value) => Math.max(y0, Math.min(y1, value));
    const points = inside.map(([at, value]) => `${x(at).toFixed(1)},${y(cut(value)).toFixed(1)}`).join(" ");
    svg.append(element("polyline", { points, fill: "none", stroke: COLOURS[line.colour], "stroke-width": 2 }));
  });
  for (const mark of (plot.marks ?? []).filter(({ at }) => at >= x0 && at <= x1)) {
    svg.append(element("line", { x1: x(mark.at), x2: x(mark.at), y1: y(y0), y2: y(y1), class: "knobs-mark" }));
    svg.append(element("text", { x: x(mark.at) + 4, y: FRAME.top + 10, class: "knobs-text" }, mark.label));
  }
  return svg;
}

function axes(svg, plot, x, y) {
  const bottom = HEIGHT - FRAME.bottom;
  const line = (x1, x2, y1, y2) => svg.append(element("line", { x1, x2, y1, y2, class: "knobs-grid" }));
  const text = (at, height, anchor, words) => {
    svg.append(element("text", { x: at, y: height, "text-anchor": anchor, class: "knobs-text" }, words));
  };
  for (const value of ticks(...plot.x.range)) {
    line(x(value), x(value), FRAME.top, bottom);
    text(x(value), bottom + 15, "middle", shown(value));
  }
  for (const value of ticks(...plot.y.range)) {
    line(FRAME.left, WIDTH - FRAME.right, y(value), y(value));
    text(FRAME.left - 6, y(value) + 4, "end", shown(value));
  }
  text((WIDTH + FRAME.left) / 2, HEIGHT - 6, "middle", plot.x.label);
}

function legend(plot) {
  const box = document.createElement("p");
  box.className = "knobs-legend";
  const named = [...(plot.lines ?? []), ...(plot.bars ?? [])].filter(({ name }) => name);
  const title = document.createElement("strong");
  title.textContent = plot.title;
  box.append(title, ...named.map((part) => {
    const entry = document.createElement("span");
    entry.style.setProperty("--knobs-colour", COLOURS[part.colour]);
    entry.textContent = part.name;
    return entry;
  }));
  return box;
}

// A panel in the element `id`: sliders for `knobs` ({label, range, value, step}), and what `plots` and `words` make of
// their values, anew at each move.
function panel(id, knobs, plots, words) {
  const place = document.getElementById(id);
  const values = {};
  const sliders = document.createElement("div");
  const drawings = document.createElement("div");
  const said = document.createElement("p");
  sliders.className = "knobs-sliders";
  drawings.className = "knobs-drawings";
  said.setAttribute("aria-live", "polite");
  const update = () => {
    drawings.replaceChildren(...plots(values).map((plot) => {
      const part = document.createElement("div");
      part.append(legend(plot), draw(plot));
      return part;
    }));
    said.textContent = words(values);
  };
  for (const [name, knob] of Object.entries(knobs)) sliders.append(slider(name, knob, values, update));
  place.replaceChildren(sliders, drawings, said);
  update();
}

function slider(name, knob, values, update) {
  const label = document.createElement("label");
  const input = document.createElement("input");
  const number = document.createElement("output");
  const read = () => {
    values[name] = knob.power ? Math.round(10 ** Number(input.value)) : Number(input.value);
    number.textContent = shown(values[name]);
  };
  Object.assign(input, { type: "range", min: knob.range[0], max: knob.range[1], step: knob.step });
  input.value = knob.value;
  input.addEventListener("input", () => {
    read();
    update();
  });
  read();
  label.append(`${knob.label} `, number, input);
  return label;
}
