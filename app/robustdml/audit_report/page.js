"use strict";
// Names come into the page as texts alone, never as HTML.
const data = JSON.parse(document.getElementById("data").textContent), SIZE = 40;
const key = "robustdml-decisions " + data.audit;
// Under "s" and its name [word, label] of a suspect, under "q" and its name the number of a question's choice.
const decisions = { ...data.decisions };
let rows = data.suspects, at = 0;
const past = [];
try {
  Object.assign(decisions, JSON.parse(localStorage.getItem(key)));
} catch (error) { /* nothing is kept there, or something else */ }

function element(tag, parent, text, name) {
  const made = document.createElement(tag);
  if (text !== undefined) write(made, text);
  if (name) made.className = name;
  parent.append(made);
  return made;
}
// Written out: what cannot be seen, or would turn the text beside it.
const plain = text =>
  String(text).replace(/[\p{C}\p{Zl}\p{Zp}]/gu, one => "\\u" + one.codePointAt(0).toString(16).padStart(4, "0"));
function write(place, text) {
  place.textContent = "";
  // A line may end after these signs, as after a space.
  plain(text).split(/(?<=[_./-])/).forEach((part, number) => {
    if (number && place.tagName !== "OPTION") place.append(document.createElement("wbr"));
    place.append(part);
  });
}
function button(parent, text, effect, act, letter) {
  const made = element("button", parent);
  if (letter) { element("kbd", made, letter); made.append(" "); }
  made.append(plain(text));
  if (effect) element("small", made, effect);
  made.onclick = event => { event.stopPropagation(); made.blur(); act(event); };
  return made;
}
const dialogs = Object.fromEntries(["large", "other", "summary"].map(name => [name, element("dialog", document.body)]));
for (const [name, box] of Object.entries(dialogs)) box.id = name;
dialogs.large.onclick = () => dialogs.large.close();
function open(name) {
  if (!dialogs[name].open) dialogs[name].showModal();
  return dialogs[name];
}

function describe(row) {
  const sample = data.samples[row];
  return `${sample.label} · ${sample.name}`;
}
function enlarge(row) {
  dialogs.large.textContent = "";
  picture(dialogs.large, row);
  element("div", dialogs.large, describe(row));
  open("large");
}
function picture(parent, row) {
  const sample = data.samples[row];
  if (!sample || !sample.picture) return;
  const image = element("img", parent);
  image.loading = "lazy"; image.alt = plain(sample.name); image.title = plain(describe(row));
  image.src = sample.picture;
  if (parent !== dialogs.large) image.onclick = () => enlarge(row);
}

// Suspects
const numbers = new Map(data.classes.map((name, number) => [name, number]));
const kindOf = sample => JSON.stringify([sample.label, sample.proposed, sample.verdict]);
const kinds = new Map();
for (const row of data.suspects) {
  const kind = kindOf(data.samples[row]);
  if (!kinds.has(kind)) kinds.set(kind, []);
  kinds.get(kind).push(row);
}
const decided = row => decisions["s" + data.samples[row].name];
const alike = row => kinds.get(kindOf(data.samples[row])).filter(one => one !== row && !decided(one));

function choicesOf(sample) {
  const out = [["r", "right", "label is right", `apply keeps it in “${sample.label}”`, ""]];
  if (sample.proposed !== sample.label)
    out.push(["t", "relabel", "take the proposal", `apply puts it in “${sample.proposed}”`, sample.proposed]);
  out.push(["c", "relabel", "another class…", "apply puts it there", null]);
  out.push(["n", "no class", "belongs to no class", "apply leaves it out", ""]);
  out.push(["w", "wrong", "wrong, class unknown", "apply leaves it out", ""]);
  out.push(["d", "drop", "drop", "apply leaves it out", ""]);
  return out;
}
function column(card, title, name, probability) {
  const box = element("div", card);
  element("div", box, `${title}: ${name}, ${(100 * probability).toFixed(0)} %`);
  (data.typical[numbers.get(name)] || []).forEach(row => picture(box, row));
}
function drawCard(list, row, place) {
  const sample = data.samples[row], card = element("div", list, undefined, "card");
  card.addEventListener("click", () => go(place), true);
  const own = element("div", card, undefined, "own");
  picture(own, row);
  element("div", own, sample.verdict);
  element("div", own, sample.name, "name");
  column(card, "given", sample.label, sample.right);
  if (sample.proposed !== sample.label) column(card, "proposed", sample.proposed, sample.sure);
  else element("div", card, "no other class is likelier");
  const near = element("div", card);
  element("div", near, "most similar");
  const figures = element("div", near, undefined, "near");
  (data.near[row] || []).forEach(one => {
    const figure = element("figure", figures);
    picture(figure, one);
    element("figcaption", figure, data.samples[one].label);
  });
  const side = element("div", card, undefined, "choices");
  for (const [letter, word, text, effect, label] of choicesOf(sample))
    button(side, text, effect, event => choose(word, label, event.shiftKey), letter);
  const others = kinds.get(kindOf(sample)).length - 1, line = element("label", side);
  // A page that is opened again has no box checked.
  Object.assign(element("input", line), { type: "checkbox", autocomplete: "off" });
  line.hidden = !others;
  const proposal = sample.proposed === sample.label ? "no proposal" : `the proposal “${sample.proposed}”`;
  line.append(plain(` and all others given “${sample.label}” with ${proposal} (${others})`));
}
function draw() {
  const list = document.getElementById("list"), first = at - at % SIZE;
  list.textContent = "";
  rows.slice(first, first + SIZE).forEach((row, place) => drawCard(list, row, first + place));
  mark();
}
function mark() {
  document.querySelectorAll(".card").forEach((card, place) => {
    const row = rows[at - at % SIZE + place], chosen = decided(row), choices = choicesOf(data.samples[row]);
    card.classList.toggle("here", place === at % SIZE);
    card.classList.toggle("decided", Boolean(chosen));
    const taken = choices.findIndex(([, word, , , label]) => chosen && word === chosen[0] && label === chosen[1]);
    const other = choices.findIndex(choice => choice[4] === null);
    const pressed = chosen && taken < 0 ? other : taken;
    card.querySelectorAll("button").forEach((one, number) => one.setAttribute("aria-pressed", number === pressed));
    const there = pressed === other && chosen ? `apply puts it in “${chosen[1]}”` : choices[other][3];
    write(card.querySelectorAll("small")[other], there);
    if (place === at % SIZE) card.scrollIntoView({ block: "nearest" });
  });
  const open = data.suspects.filter(row => !decided(row)).length, last = Math.max(1, Math.ceil(rows.length / SIZE));
  document.getElementById("state").textContent =
    `page ${Math.floor(at / SIZE) + 1} of ${last} · ${data.suspects.length - open} decided, ${open} open`;
}
function go(to) {
  if (to < 0 || to >= rows.length || to === at) return;
  const turned = Math.floor(to / SIZE) !== Math.floor(at / SIZE);
  at = to;
  if (turned) draw(); else mark();
  if (dialogs.large.open) enlarge(rows[at]);
}
const turn = by => go((Math.floor(at / SIZE) + by) * SIZE);

function keep() {
  try { localStorage.setItem(key, JSON.stringify(decisions)); } catch (error) { /* a browser that keeps nothing */ }
}
function choose(word, label, many) {
  if (label === null) ask(name => decide("relabel", name, many)); else decide(word, label, many);
}
function decide(word, label, many) {
  const row = rows[at];
  if (row === undefined) return;
  const before = {}, all = document.querySelector(".here input");
  for (const one of many || all.checked ? [row, ...alike(row)] : [row]) {
    const name = "s" + data.samples[one].name;
    before[name] = decisions[name];
    decisions[name] = [word, label];
  }
  all.checked = false;
  past.push([at, before]);
  keep();
  const next = rows.findIndex((one, place) => place > at && !decided(one));
  if (next < 0) mark(); else go(next);
}
function undo() {
  const last = past.pop();
  if (!last) return;
  for (const [name, value] of Object.entries(last[1])) if (value) decisions[name] = value; else delete decisions[name];
  keep();
  if (last[0] === at) mark(); else go(last[0]);
}
function ask(act) {
  const box = open("other");
  box.textContent = "";
  const field = element("input", box), list = element("div", box);
  field.placeholder = "search for a class";
  field.oninput = () => {
    const text = field.value.toLowerCase(), found = data.classes.filter(name => name.toLowerCase().includes(text));
    found.sort((one, two) => two.toLowerCase().startsWith(text) - one.toLowerCase().startsWith(text));
    list.textContent = found.length ? "" : "no class has this in its name";
    for (const name of found.slice(0, 10)) button(list, name, "", () => { box.close(); act(name); });
  };
  field.onkeydown = event => { if (event.key === "Enter" && list.firstElementChild) list.firstElementChild.click(); };
  field.oninput();
  field.focus();
}

// Questions on classes, and on copies in training and test
function drawSection(section) {
  const place = element("section", document.getElementById("questions"));
  element("h2", place, section.title);
  element("p", place, section.questions.length ? section.about : "None.");
  const marks = section.questions.map(question => drawQuestion(place, question));
  if (section.questions.length < 2 || !section.all) return;
  const box = element("p", place, undefined, "choices");
  section.questions[0].choices.forEach(({ text }, number) => button(box, `${text}: all without a decision`, "", () => {
    for (const question of section.questions) decisions["q" + question.name] ??= number;
    keep();
    marks.forEach(mark => mark());
  }));
}
function drawQuestion(place, question) {
  const box = element("div", place, undefined, "question"), sides = element("div", box, undefined, "sides");
  for (const [title, members] of question.sides) {
    const side = element("div", sides);
    element("div", side, title);
    members.forEach(row => picture(side, row));
  }
  element("div", box, question.evidence, "name");
  const line = element("div", box, undefined, "choices"), name = "q" + question.name;
  const made = question.choices.map((choice, number) => button(line, choice.text, choice.effect, () => {
    if (decisions[name] === number) delete decisions[name]; else decisions[name] = number;
    keep();
    mark();
  }));
  const mark = () => made.forEach((one, number) => one.setAttribute("aria-pressed", decisions[name] === number));
  mark();
  return mark;
}

// Summary and download
function summarize() {
  const box = open("summary"), of = word => data.suspects.filter(row => (decided(row) || [])[0] === word);
  const moved = of("relabel"), proposed = moved.filter(row => decided(row)[1] === data.samples[row].proposed).length;
  const left = data.suspects.filter(row => !decided(row));
  const unsure = left.filter(row => data.samples[row].verdict === "not sure").length;
  const list = Object.entries({
    "keep their label": of("right").length, "go to the class proposed": proposed,
    "go to another class": moved.length - proposed, "belong to no class, left out": of("no class").length,
    "wrong, of an unknown class, left out": of("wrong").length, "dropped, left out": of("drop").length, "not sure and without a decision, keep their label": unsure,
    "without a decision, left out, or by --use correct under a sure proposal": left.length - unsure,
  }).filter(([, count]) => count).map(([text, count]) => `${text}: ${count}`);
  const chosen = data.sections.flatMap(section => section.questions).map(one => one.choices[decisions["q" + one.name]]);
  list.push(...chosen.filter(Boolean).map(choice => choice.effect));
  box.textContent = "";
  element("h2", box, "What apply will do");
  const items = element("ul", box);
  list.forEach(text => element("li", items, text));
  element("p", box, "robustdml apply labels.csv --decisions decisions.csv --to CLEAN");
  button(box, "download decisions.csv", "", download);
  button(box, "back", "", () => box.close());
}
function download() {
  const lines = [["sample", "class", "decision", "label"]];
  for (const row of data.suspects) if (decided(row)) lines.push([data.samples[row].name, "", ...decided(row)]);
  for (const question of data.sections.flatMap(section => section.questions))
    lines.push(...(question.choices[decisions["q" + question.name]] || { lines: [] }).lines);
  const text = lines.map(line => line.map(cell => '"' + String(cell).replaceAll('"', '""') + '"').join(",") + "\n");
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob(text, { type: "text/csv" }));
  link.download = "decisions.csv";
  link.click();
}

// Bar and keys
const bar = document.getElementById("bar"), filter = element("select", bar);
element("option", filter, "all classes").value = "";
const given = new Set(data.suspects.map(row => data.samples[row].label));
given.forEach(name => element("option", filter, name).value = name);
const order = element("select", bar);
const orders = { class: "class by class", worst: "worst first", pair: "by label and proposal", spread: "spread over the classes" };
for (const [name, text] of Object.entries(orders))
  element("option", order, text).value = name;
// How many of its class come before a suspect: within a class the worst comes first.
const before = new Map(), met = {}, ofPair = new Map();
const pair = row => data.samples[row].label + "\0" + data.samples[row].proposed;
for (const row of data.suspects) ofPair.set(pair(row), (ofPair.get(pair(row)) || 0) + 1);
for (const row of data.suspects) before.set(row, met["c" + data.samples[row].label] = (met["c" + data.samples[row].label] || 0) + 1);
function arrange() {
  rows = data.suspects.filter(row => !filter.value || data.samples[row].label === filter.value);
  const rank = row => data.samples[row].rank;
  if (order.value === "worst") rows.sort((one, two) => rank(one) - rank(two));
  // The pair with most suspects first.
  const pairs = (one, two) => ofPair.get(two) - ofPair.get(one) || (one > two) - (one < two);
  if (order.value === "pair") rows.sort((one, two) => pairs(pair(one), pair(two)) || rank(one) - rank(two));
  if (order.value === "spread") rows.sort((one, two) => before.get(one) - before.get(two) || rank(one) - rank(two));
  at = 0; past.length = 0; draw(); filter.blur(); order.blur();
}
filter.onchange = order.onchange = arrange;
button(bar, "previous page", "", () => turn(-1), "h");
button(bar, "next page", "", () => turn(1), "l");
button(bar, "undo", "", undo, "u");
button(bar, "summary and download", "", summarize, "s");
element("span", bar).id = "state";
document.addEventListener("keydown", event => {
  const letter = event.key.toLowerCase(), typed = event.target.tagName;
  if (event.ctrlKey || event.metaKey || event.altKey || typed === "SELECT") return;
  if (/BUTTON|INPUT/.test(typed) && /^( |enter)$/.test(letter)) return;
  if (dialogs.other.open || dialogs.summary.open || !rows.length) return;
  const choice = choicesOf(data.samples[rows[at]]).find(one => one[0] === letter);
  const act = { j: () => go(at + 1), arrowdown: () => go(at + 1), k: () => go(at - 1), arrowup: () => go(at - 1),
    l: () => turn(1), h: () => turn(-1), u: undo, s: summarize,
    " ": () => dialogs.large.open ? dialogs.large.close() : enlarge(rows[at]) }[letter];
  if (choice) choose(choice[1], choice[4], event.shiftKey); else if (act) act(); else return;
  event.preventDefault();
});
for (const section of data.sections) drawSection(section);
data.groups.forEach(members => {
  const box = element("div", document.getElementById("groups"), undefined, "group");
  members.forEach(row => {
    const one = element("span", box);
    picture(one, row);
    element("div", one, describe(row));
  });
});
if (!data.groups.length) element("p", document.getElementById("groups"), "None.");
draw();
