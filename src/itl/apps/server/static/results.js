// Results: accuracy per class, what was forgotten, the confusion matrix with its pictures, the memory.

import * as api from "./api.js";
import { h, plural, points } from "./dom.js";

const MEMORY_SHOWN = 12;
let root = null, shown = "", page = null;

export function setUp(owner) {
  page = owner;
  root = document.getElementById("results");
}

export function reset() { shown = ""; }

const version = () => JSON.stringify([page.state.model.name, page.state.model.history, page.state.tried]);

export async function changed() { if (version() !== shown) await show(); }

export async function show() {
  if (!page.state.model.ready) {
    shown = version();
    root.replaceChildren(h("h2", {}, "Results"),
      h("p", { class: "notice" }, "There are no results yet. Teach the model first."));
    return;
  }
  if (version() === shown) return;
  const wanted = version(), review = await api.get("review");
  shown = wanted;
  const lost = review.classes.filter((one) => one.forgotten !== null);
  const forgotten = lost.length ? lost.reduce((sum, one) => sum + one.forgotten, 0) / lost.length : null;
  root.replaceChildren(
    h("div", { class: "intro" }, h("h2", {}, "Results"),
      h("p", { class: "hint" }, "Measured on held-out pictures, which the model was not trained on.")),
    h("dl", { class: "figures" },
      figure("Accuracy now", points(review.accuracy), `on ${plural(review.images, "held-out picture")}`),
      figure("Forgotten", forgotten === null ? "–" : `${forgotten.toFixed(1)} points`, "mean over the classes"),
      figure("Memory", String(page.state.model.memory.images), page.state.model.memory.size
        ? `of ${page.state.model.memory.size} pictures` : "this method keeps no pictures")),
    h("h3", {}, "Classes"), classTable(review),
    h("h3", {}, "Confusion matrix"),
    h("p", { class: "hint" }, "Rows: the true class. Columns: the predicted class. Press a number to see its pictures."),
    matrix(review),
    ...(page.state.model.memory.size ? [h("h3", {}, "Memory"),
      h("p", { class: "hint" }, "The pictures that the model repeats so that it does not forget."),
      h("div", { class: "memory" }, review.classes.map(memory))] : []));
}

const figure = (name, value, detail) => h("div", {}, h("dt", {}, name), h("dd", {}, value), h("dd", {}, detail));

function classTable(review) {
  const row = (one) => {
    const fill = h("div", { class: "fill" });
    fill.style.width = `${one.now || 0}%`;
    const lost = one.forgotten;
    return h("tr", {}, h("th", { scope: "row" }, one.name),
      h("td", {}, h("div", { class: "cell" }, h("div", { class: "track" }, fill), h("span", {}, points(one.now)))),
      h("td", { class: "number" }, points(one.was)),
      h("td", { class: lost > 0.05 ? "number lost" : "number" },
        lost === null ? "–" : `${lost > 0 ? "−" : lost < 0 ? "+" : ""}${Math.abs(lost).toFixed(1)}`),
      h("td", { class: "number" }, String(one.images)), h("td", { class: "number" }, String(one.memory.length)));
  };
  const head = ["Class", "Accuracy now", "When taught", "Change", "Held out", "In memory"];
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Classes" }, h("table", {},
    h("thead", {}, h("tr", {}, head.map((text) => h("th", { scope: "col" }, text)))),
    h("tbody", {}, review.classes.map(row))));
}

function matrix(review) {
  const names = review.classes.map((one) => one.name);
  const pictures = h("div", { class: "cell-pictures", "aria-live": "polite" });
  const open = (row, column) => {
    const ids = review.cells[`${row},${column}`] || [];
    pictures.replaceChildren(
      h("p", {}, h("strong", {}, names[row]), row === column ? " recognized as " : " taken for ",
        h("strong", {}, names[column]), `: ${plural(review.confusion[row][column], "picture")}`),
      h("div", { class: "thumbs" }, ids.map((id) => h("img", { class: "thumb", src: api.picture(id),
        alt: `${names[row]}, predicted ${names[column]}`, loading: "lazy" }))));
  };
  const cell = (count, row, column, total) => {
    if (!count) return h("td", { class: "zero" }, "·");
    const kind = row === column ? "right" : "wrong";
    const level = Math.max(1, Math.min(4, Math.ceil(4 * count / total)));
    return h("td", {}, h("button", { type: "button", class: `count ${kind} level-${level}`, onclick: () =>
      open(row, column), "aria-label": `${count} of ${names[row]} predicted as ${names[column]}` }, String(count)));
  };
  const body = review.confusion.map((counts, row) => {
    const total = counts.reduce((sum, count) => sum + count, 0);
    return h("tr", {}, h("th", { scope: "row" }, names[row]),
      counts.map((count, column) => cell(count, row, column, total)));
  });
  const table = h("table", { class: "matrix" }, h("thead", {}, h("tr", {}, h("td", {}),
    names.map((name) => h("th", { scope: "col" }, name)))), h("tbody", {}, body));
  return h("div", {}, h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Confusion matrix" },
    table), pictures);
}

function memory(one) {
  const picture = (slot) => h("img", { class: "thumb", src: api.url(`memory/${slot}`, { of: shown.length }), alt: "",
    loading: "lazy" });
  const box = h("div", { class: "thumbs" }, one.memory.slice(0, MEMORY_SHOWN).map(picture));
  const rest = one.memory.slice(MEMORY_SHOWN);
  const more = rest.length ? h("button", { type: "button", class: "link", onclick: () => {
    box.append(...rest.map(picture));
    more.remove();
  } }, `Show ${rest.length} more`) : null;
  return h("section", {}, h("h4", {}, one.name, " ", h("span", { class: "hint" }, plural(one.memory.length, "picture"))),
    box, more);
}
