"""Style and script of ``audit.html``. Names come into the page as texts alone, never as HTML."""

STYLE = """
body { font: 16px/1.5 system-ui, "DejaVu Sans", sans-serif; color: #222529; background: #fff; max-width: 72rem;
       margin: 2rem auto 5rem; padding: 0 1rem; }
h1 { font-size: 1.6rem; overflow-wrap: anywhere; } h2 { font-size: 1.2rem; margin-top: 2.5rem; }
.finding { font-size: 1.1rem; border-left: 4px solid #d55e00; padding: .3rem 1rem; }
kbd { border: 1px solid #c9ccd1; border-radius: 4px; padding: 0 .3em; background: #f6f7f8; }
#bar { display: flex; gap: .6rem; flex-wrap: wrap; align-items: center; position: sticky; top: 0; background: #fff;
       padding: .5rem 0; border-bottom: 1px solid #e6e8eb; }
button, select { font: inherit; padding: .15rem .7rem; max-width: 20rem; }
.card { display: grid; grid-template-columns: 6rem 1fr 1fr 11rem; gap: 1rem; padding: .6rem;
        border: 2px solid transparent;
        border-bottom-color: #e6e8eb; min-height: 5.5rem; content-visibility: auto;
        contain-intrinsic-size: auto 7rem; }
.card.here { border-color: #0072b2; border-radius: 6px; }
.card.accept { background: #e9f6f0; } .card.refuse { background: #fbeeec; }
.card .name { font-size: .75rem; color: #5b6067; overflow-wrap: anywhere; }
.card .title { overflow-wrap: anywhere; }
img { width: 72px; height: 72px; margin-right: 3px; background: #eee; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .25rem .8rem .25rem 0; border-bottom: 1px solid #e6e8eb; overflow-wrap: anywhere; }
.wide { overflow-x: auto; } .matrix td { text-align: right; padding: .1rem .35rem; min-width: 1.6rem;
       border: 1px solid #e6e8eb; }
.matrix th { padding: .1rem .4rem; border: 0; max-width: 10rem; } .matrix .own { color: #5b6067; background: #f6f7f8; }
.matrix th span { writing-mode: vertical-rl; max-height: 9rem; overflow: hidden; }
details { max-height: 30rem; overflow: auto; } .group { padding: .4rem 0; border-bottom: 1px solid #e6e8eb; }
.group span { display: inline-block; max-width: 9rem; font-size: .8rem; overflow-wrap: anywhere; vertical-align: top; }
"""

SCRIPT = r"""
"use strict";
const data = JSON.parse(document.getElementById("data").textContent), SIZE = 40;
const key = "robustdml-audit " + data.source + " " + data.suspects.length;
// Without a prototype: a sample may be called __proto__.
let decisions = Object.create(null), rows = data.suspects, page = 0, here = 0;
try {
  for (const [name, word] of Object.entries(JSON.parse(localStorage.getItem(key)) || {})) decisions[name] = word;
} catch (error) { /* nothing is kept there, or something else */ }

function element(tag, parent, text, name) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (name) made.className = name;
  parent.append(made);
  return made;
}
function picture(parent, row) {
  const sample = data.samples[row];
  if (!sample || !sample.picture) return;
  const image = element("img", parent);
  image.loading = "lazy"; image.alt = sample.name; image.title = sample.name;
  image.src = "data:image/jpeg;base64," + sample.picture;
}
const numbers = new Map(data.classes.map((name, number) => [name, number]));
function column(card, title, name, probability) {
  const box = element("div", card);
  element("div", box, `${title}: ${name}, ${(100 * probability).toFixed(0)} %`, "title");
  (data.typical[numbers.get(name)] || []).forEach(row => picture(box, row));
}
function draw() {
  const list = document.getElementById("list");
  list.textContent = "";
  rows.slice(page * SIZE, page * SIZE + SIZE).forEach((row, place) => {
    const sample = data.samples[row];
    const state = (decisions[sample.name] || "") + (place === here ? " here" : "");
    const card = element("div", list, undefined, "card " + state);
    card.onclick = () => { here = place; mark(); };
    const own = element("div", card);
    picture(own, row);
    element("div", own, sample.name, "name");
    column(card, "given", sample.label, sample.right);
    if (sample.proposed !== sample.label) column(card, "proposed", sample.proposed, sample.sure);
    else element("div", card, "no other class is likelier");
    const side = element("div", card);
    element("div", side, sample.verdict);
    for (const word of ["accept", "refuse"]) element("button", side, word).onclick = event => {
      event.stopPropagation(); here = place; decide(word);
    };
  });
  bar();
}
function mark() {
  document.querySelectorAll(".card").forEach((card, place) => {
    card.classList.toggle("here", place === here);
    const decision = decisions[data.samples[rows[page * SIZE + place]].name];
    card.classList.toggle("accept", decision === "accept");
    card.classList.toggle("refuse", decision === "refuse");
    if (place === here) card.scrollIntoView({ block: "nearest" });
  });
  bar();
}
function decide(word) {
  const row = rows[page * SIZE + here];
  if (row === undefined) return;
  if (word) decisions[data.samples[row].name] = word; else delete decisions[data.samples[row].name];
  try { localStorage.setItem(key, JSON.stringify(decisions)); } catch (error) { /* a browser that keeps nothing */ }
  if (word) move(1); else mark();
}
function turn(by) {
  const last = Math.max(0, Math.ceil(rows.length / SIZE) - 1), next = Math.min(Math.max(page + by, 0), last);
  if (next === page) return false;
  page = next; here = 0; draw();
  return true;
}
function move(by) {
  const shown = Math.min(SIZE, rows.length - page * SIZE);
  if (here + by >= 0 && here + by < shown) { here += by; mark(); }
  else if (by > 0) { if (!turn(1)) mark(); }
  else if (turn(-1)) { here = SIZE - 1; mark(); }
}
function quoted(text) { return '"' + String(text).replaceAll('"', '""') + '"'; }
function download() {
  const lines = ["sample,label,proposed,decision"];
  for (const row of data.suspects) {
    const sample = data.samples[row], decision = decisions[sample.name];
    if (decision) lines.push([sample.name, sample.label, sample.proposed, decision].map(quoted).join(","));
  }
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([lines.join("\n") + "\n"], { type: "text/csv" }));
  link.download = "decisions.csv";
  link.click();
}
let status_, made = false;
function bar() {
  const box = document.getElementById("bar");
  if (!made) {
    made = true;
    const choice = element("select", box);
    element("option", choice, "all classes").value = "";
    const names = new Set(data.suspects.map(row => data.samples[row].label));
    names.forEach(name => element("option", choice, name).value = name);
    choice.onchange = () => {
      rows = data.suspects.filter(row => !choice.value || data.samples[row].label === choice.value);
      page = here = 0; draw(); choice.blur();
    };
    element("button", box, "previous page").onclick = () => turn(-1);
    element("button", box, "next page").onclick = () => turn(1);
    element("button", box, "download decisions").onclick = download;
    status_ = element("span", box);
  }
  const last = Math.max(1, Math.ceil(rows.length / SIZE));
  status_.textContent = `page ${page + 1} of ${last}, ${Object.keys(decisions).length} decided`;
}
document.addEventListener("keydown", event => {
  if (event.ctrlKey || event.metaKey || event.altKey || /SELECT|INPUT/.test(event.target.tagName)) return;
  const act = { j: () => move(1), ArrowDown: () => move(1), k: () => move(-1), ArrowUp: () => move(-1),
    n: () => turn(1), p: () => turn(-1), a: () => decide("accept"), r: () => decide("refuse"),
    u: () => decide("") }[event.key];
  if (act) { event.preventDefault(); act(); }
});
const groups = document.getElementById("groups");
if (!data.groups.length) element("p", groups, "None.");
data.groups.forEach(members => {
  const box = element("div", groups, undefined, "group");
  members.forEach(row => {
    const one = element("span", box);
    picture(one, row);
    element("div", one, data.samples[row].label + " · " + data.samples[row].name);
  });
});
draw();
"""
