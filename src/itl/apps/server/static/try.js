// Try: predictions for dropped pictures and for the live camera.

import * as api from "./api.js";
import * as camera from "./camera.js";
import { h, percent, run, say } from "./dom.js";
import { chunks, dropped, dropTarget } from "./files.js";

const LIVE_MS = 250, SHOWN = 24;
let page = null, root = null, live = false;

export function setUp(owner) {
  page = owner;
  root = document.getElementById("try");
  const input = h("input", { type: "file", accept: "image/*", multiple: true, hidden: true, onchange: () => {
    classify([...input.files]);
    input.value = "";
  } });
  const zone = h("div", { class: "zone" }, input,
    h("p", {}, "Drop pictures here"),
    h("div", { class: "row" },
      h("button", { type: "button", class: "primary", id: "try-files", onclick: () => input.click() },
        "Choose pictures"),
      h("button", { type: "button", id: "try-camera", "aria-pressed": "false", onclick: (event) =>
        run(toggle, event.currentTarget) }, "Camera")));
  dropTarget(zone, async (transfer) => classify((await dropped(transfer)).flatMap((group) => group.files)));
  root.append(
    h("div", { class: "intro" }, h("h2", {}, "Try"), h("p", { class: "hint", id: "rule" })),
    h("p", { class: "notice", id: "not-ready", hidden: true }, "The model has not learned anything yet. Teach it first."),
    h("div", { id: "ready", class: "try" }, zone,
      h("div", { id: "live", hidden: true }),
      h("div", { id: "tried", class: "tried", "aria-live": "polite" })));
}

export function reset() {
  hide();
  root.querySelector("#tried").replaceChildren();
}

export function render() {
  const { model } = page.state;
  root.querySelector("#rule").textContent = model.unknown_rule;
  root.querySelector("#not-ready").hidden = model.ready;
  root.querySelector("#ready").hidden = !model.ready;
}

// Name, probability and bars of a prediction.
export function answer(prediction) {
  const head = prediction.unknown
    ? h("p", { class: "answer unknown" }, "unknown", h("span", {}, ` most likely ${prediction.class}`))
    : h("p", { class: "answer" }, prediction.class, h("span", {}, ` ${percent(prediction.confidence)}`));
  const bars = h("ul", { class: "bars" }, prediction.top.map((one, index) => {
    const fill = h("div", { class: index ? "fill other" : "fill" });
    fill.style.width = `${100 * one.confidence}%`;
    return h("li", {}, h("span", { class: "label" }, one.class), h("div", { class: "track" }, fill),
      h("span", { class: "number" }, percent(one.confidence)));
  }));
  return [head, bars];
}

async function classify(files) {
  for (const some of chunks(files)) {
    const result = await run(() => api.send(page.readOnly ? "predict" : "try", some));
    if (!result) return;
    const names = new Map(some.map((file) => [file.name, file]));
    for (const prediction of result.predictions) show(prediction, names.get(prediction.name));
    for (const problem of result.problems) say(`${problem.name}: ${problem.why}`, "error");
  }
}

function show(prediction, file) {
  const source = prediction.picture ? api.picture(prediction.picture, 320) : URL.createObjectURL(file);
  const image = h("img", { src: source, alt: prediction.name });
  if (!prediction.picture) image.addEventListener("load", () => URL.revokeObjectURL(source), { once: true });
  const list = root.querySelector("#tried");
  list.prepend(h("article", { class: "result" }, image, h("div", { class: "grow" }, answer(prediction),
    page.readOnly ? null : h("p", { class: "hint" }, "Wrong? ",
      h("button", { type: "button", class: "link", onclick: () => page.open("correct", true) }, "Correct it"), "."))));
  while (list.children.length > SHOWN) list.lastChild.remove();
}

// ------------------------------------------------------------------ camera

async function toggle() {
  if (live) return hide();
  const video = camera.preview(), box = root.querySelector("#live"), out = h("div", { class: "grow" });
  const keep = h("button", { type: "button", onclick: () => run(async () => {
    await classify([await camera.frame(video, "camera.jpg")]);
  }, keep) }, "Keep this picture");
  box.replaceChildren(h("div", { class: "result" }, h("div", {}, video, page.readOnly ? null : keep), out));
  box.hidden = false;
  await camera.start(video, root);
  live = true;
  root.querySelector("#try-camera").setAttribute("aria-pressed", "true");
  watch(video, out);
  return null;
}

async function watch(video, out) {
  while (live && video.isConnected) {
    const result = await run(async () => api.send("predict", [await camera.frame(video)]));
    if (!result) return hide();
    if (live) out.replaceChildren(...answer(result.predictions[0]));
    await new Promise((resolve) => setTimeout(resolve, LIVE_MS));
  }
  return null;
}

export function hide() {
  live = false;
  if (!root) return;
  camera.stop(root);
  root.querySelector("#live").hidden = true;
  root.querySelector("#live").replaceChildren();
  root.querySelector("#try-camera").setAttribute("aria-pressed", "false");
}
