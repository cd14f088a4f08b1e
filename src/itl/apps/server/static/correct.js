// Correct: the least certain pictures; one click moves a picture into a class of the next lesson.

import * as api from "./api.js";
import { ask, h, percent, run, say, sync } from "./dom.js";

const MAX_BUTTONS = 8, PAGE = 30;
let root = null, page = null, rows = [], limit = PAGE, shown = "";

export function setUp(owner) {
  page = owner;
  root = document.getElementById("correct");
  root.append(
    h("div", { class: "intro" }, h("h2", {}, "Correct"),
      h("p", { class: "hint" }, "Held-out and tried pictures, the least certain first. Press the right class to use a " +
        "picture in the next lesson; then press Teach.")),
    h("p", { class: "notice", id: "nothing" }),
    h("div", { id: "uncertain", class: "uncertain" }),
    h("button", { type: "button", id: "more", onclick: () => {
      limit += PAGE;
      draw();
    } }, "Show more"));
}

export function reset() {
  rows = [];
  limit = PAGE;
  shown = "";
}

const version = () => JSON.stringify([page.state.model.name, page.state.model.history, page.state.tried]);

export async function changed() { if (version() !== shown) await show(); }

export async function show() {
  shown = version();
  rows = page.state.model.ready ? (await api.get("review")).uncertain : [];
  draw();
}

function draw() {
  const nothing = root.querySelector("#nothing");
  nothing.hidden = rows.length > 0;
  nothing.textContent = page.state.model.ready ? "There are no pictures to check. Try some, and they appear here."
    : "There is nothing to correct yet. Teach the model first.";
  sync(root.querySelector("#uncertain"), rows.slice(0, limit), (row) => row.picture, create);
  root.querySelector("#more").hidden = rows.length <= limit;
}

function create(row) {
  const names = page.state.model.classes, wrong = row.class !== null && row.class !== row.predicted;
  const truth = row.class === null ? "Tried" : `Held out, class ${row.class}`;
  const guess = row.unknown ? `unknown, most likely ${row.predicted}` : `predicted ${row.predicted}`;
  return h("article", { class: `uncertain-row${wrong ? " wrong" : ""}` },
    h("img", { src: api.picture(row.picture), alt: "", loading: "lazy" }),
    h("div", { class: "grow" },
      h("p", {}, h("strong", {}, truth), h("br"), `${guess}, ${percent(row.confidence)}`),
      row.movable ? buttons(row, names)
        : h("p", { class: "hint" }, "This picture is in a folder that was taught with itl learn.")));
}

function buttons(row, names) {
  const put = (name, button) => run(async () => {
    await api.post("correct", { picture: row.picture, class: name });
    rows = rows.filter((one) => one !== row);
    const next = root.querySelector(`[data-key="${row.picture}"]`).nextSibling;
    draw();
    say(`The picture is in the next lesson as ${name}.`);
    if (next) next.querySelector("button")?.focus();
    await page.refresh();
    shown = version();
  }, button);
  const known = names.slice(0, MAX_BUTTONS).map((name) => h("button", { type: "button", class: "chip",
    "aria-label": `It is ${name}`, onclick: (event) => put(name, event.currentTarget) }, name));
  const rest = names.slice(MAX_BUTTONS);
  const list = rest.length ? h("select", { "aria-label": "Another class", onchange: (event) => {
    if (event.target.value) put(event.target.value, event.target);
  } }, h("option", { value: "" }, "More…"), rest.map((name) => h("option", { value: name }, name))) : null;
  const other = h("button", { type: "button", class: "chip new", onclick: async (event) => {
    const button = event.currentTarget;
    const name = await ask({ title: "A new class", field: "Name", button: "Use it" });
    if (name) put(name, button);
  } }, "New class…");
  return h("div", { class: "chips", role: "group", "aria-label": "The right class" }, known, list, other);
}
