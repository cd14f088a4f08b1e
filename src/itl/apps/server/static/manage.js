// Manage: history, undo, classes, downloads.

import * as api from "./api.js";
import { ask, h, plural, points, run, say } from "./dom.js";

let root = null, page = null, shown = "";

export function setUp(owner) {
  page = owner;
  root = document.getElementById("manage");
}

export function reset() { shown = ""; }

export function render() {
  const { model } = page.state;
  const version = JSON.stringify([model, page.state.busy]);
  if (version === shown) return;
  shown = version;
  const history = [...(model.history || [])].reverse();
  root.replaceChildren(
    h("div", { class: "intro" }, h("h2", {}, "Manage"),
      h("p", { class: "hint" }, model.ready ? `${model.network}, ${model.size} × ${model.size} pixels, method ` +
        `${model.method}` : "The model has not learned anything yet.")),
    h("h3", {}, "History"),
    history.length ? h("ol", { class: "history" }, history.map((entry, index) => h("li", {},
      h("div", { class: "grow" }, h("strong", {}, title(entry)), h("p", { class: "hint" }, detail(entry))),
      index === 0 ? h("button", { type: "button", id: "undo", disabled: page.state.busy, onclick: (event) =>
        undo(event.currentTarget, entry) }, "Undo") : null)))
      : h("p", { class: "notice" }, "No lessons yet."),
    h("h3", {}, "Classes"),
    h("ul", { class: "classes" }, model.classes.map((name) => classRow(name))),
    h("h3", {}, "Downloads"),
    h("ul", { class: "downloads" }, downloads(model)));
}

function title(entry) {
  if (entry.what === "learn") return `Lesson: ${Object.keys(entry.classes || {}).join(", ")}`;
  if (entry.what === "rename") return `Renamed ${entry.old} to ${entry.new}`;
  if (entry.what === "merge") return `Merged ${entry.old} into ${entry.new}`;
  return entry.what === "forget" ? "Forgot a class" : `Changed: ${entry.what}`;
}

function detail(entry) {
  const count = Object.values(typeof entry.classes === "object" ? entry.classes : {})
    .reduce((sum, some) => sum + some, 0);
  const parts = [entry.date];
  if (count) parts.push(plural(count, "picture"));
  if (entry.accuracy && entry.accuracy.task !== null) parts.push(`accuracy ${points(entry.accuracy.task)}`);
  return parts.join(" · ");
}

async function undo(button, entry) {
  const text = entry.what === "learn" ? "The pictures of this lesson go back to Teach." : null;
  if (!await ask({ title: `Undo “${title(entry)}”?`, text, button: "Undo" })) return;
  await run(async () => {
    await api.post("undo");
    await page.refresh();
    say("Undone.");
  }, button);
}

function classRow(name) {
  const { classes } = page.state.model, { busy } = page.state;
  const others = classes.filter((other) => other !== name);
  const act = (path, values, text) => run(async () => {
    await api.post(path, values);
    await page.refresh();
    say(text);
  });
  const rename = async () => {
    const fresh = await ask({ title: `Rename ${name}`, field: "New name", value: name, button: "Rename" });
    if (fresh && fresh !== name) act("rename", { old: name, new: fresh }, `${name} is now ${fresh}.`);
  };
  const merge = async (event) => {
    const into = event.target.value;
    event.target.value = "";
    if (into && await ask({ title: `Merge ${name} into ${into}?`, text: "Both become one class.", button: "Merge" })) {
      act("rename", { old: name, new: into, merge: true }, `${name} is part of ${into} now.`);
    }
  };
  const forget = async () => {
    const text = "The class and all its pictures are deleted, and all earlier states of the model. This cannot be " +
      "undone. The weights were trained with the pictures and do not change.";
    if (await ask({ title: `Forget ${name}?`, text, button: "Forget", danger: true })) {
      act("forget", { class: name }, `${name} is forgotten.`);
    }
  };
  return h("li", {}, h("span", { class: "grow" }, name),
    h("button", { type: "button", class: "quiet", disabled: busy, "aria-label": `Rename ${name}`, onclick: rename },
      "Rename"),
    others.length ? h("select", { "aria-label": `Merge ${name} into`, disabled: busy, onchange: merge },
      h("option", { value: "" }, "Merge into…"), others.map((other) => h("option", { value: other }, other))) : null,
    others.length > 0 ? h("button", { type: "button", class: "quiet lost", disabled: busy || classes.length < 2,
      "aria-label": `Forget ${name}`, onclick: forget }, "Forget") : null);
}

function downloads(model) {
  const link = (file, text) => h("li", {}, h("a", { href: api.url(`export/${file}`), download: file }, file),
    h("span", { class: "hint" }, ` ${text}`));
  const all = [link("pictures.zip", "all pictures that were added here, by class")];
  if (!model.ready) return all;
  return [link("model.onnx", "the model for other programs; contains no pictures"),
    link("predictions.csv", "predictions for held-out and tried pictures"),
    link("memory.zip", "the memory's pictures, by class"), ...all];
}
