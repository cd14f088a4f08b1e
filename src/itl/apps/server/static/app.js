// The page: tabs, the model's state, and the lesson that is being taught.

import * as api from "./api.js";
import { ask, choose, duration, h, plural, run, say } from "./dom.js";
import * as correct from "./correct.js";
import * as manage from "./manage.js";
import * as results from "./results.js";
import * as teach from "./teach.js";
import * as tryout from "./try.js";

const PANELS = { teach, try: tryout, results, correct, manage };
const STAGES = ["reading", "specialist", "generalist", "projection", "testing"];
const STAGE_NAMES = { starting: "Starting", reading: "Reading pictures", specialist: "Learning the new pictures",
  generalist: "Refreshing what was learned before", projection: "Combining both", testing: "Testing" };
const BUSY_MS = 500, IDLE_MS = 4000;
const $ = (id) => document.getElementById(id);

export const page = { state: null, readOnly: false, refresh, open: openTab };
let timer = null, opened = "teach", lastJob = "";

// ------------------------------------------------------------------ tabs

function openTab(name, focus = false) {
  opened = name;
  for (const tab of $("tabs").children) {
    const selected = tab.id === `tab-${name}`;
    tab.setAttribute("aria-selected", String(selected));
    tab.tabIndex = selected ? 0 : -1;
    $(tab.getAttribute("aria-controls")).hidden = !selected;
    if (selected && focus) tab.focus();
  }
  for (const [other, panel] of Object.entries(PANELS)) if (other !== name && panel.hide) panel.hide();
  history.replaceState(null, "", `#${name}`);
  if (page.state && PANELS[name].show) run(() => PANELS[name].show(page));
}

function setUpTabs() {
  const tabs = () => [...$("tabs").children].filter((tab) => !tab.hidden);
  $("tabs").addEventListener("click", (event) => {
    const tab = event.target.closest("[role=tab]");
    if (tab) openTab(tab.id.slice(4));
  });
  $("tabs").addEventListener("keydown", (event) => {
    const all = tabs(), at = all.indexOf(document.activeElement);
    const next = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: all.length - 1 }[event.key];
    if (next === undefined || at < 0) return;
    event.preventDefault();
    openTab(all[(next + all.length) % all.length].id.slice(4), true);
  });
}

// ------------------------------------------------------------------ state

async function refresh() {
  clearTimeout(timer);
  try {
    page.state = await api.get("state");
    render();
  } catch (error) {
    if (!document.querySelector(".message.error")) say(error.message, "error");
  }
  timer = setTimeout(refresh, page.state && page.state.busy ? BUSY_MS : IDLE_MS);
}

function render() {
  const { state } = page;
  const names = state.models.map((name) => ({ value: name, label: name }));
  choose($("model"), names, state.model.name);
  $("new-model").hidden = !state.several;
  $("model").disabled = state.models.length < 2;
  document.title = `${state.model.name} – itl`;
  $("summary").textContent = state.model.ready
    ? `${plural(state.model.classes.length, "class")}, ${plural(state.model.lessons, "lesson")}` : "Nothing taught yet";
  renderLesson(state);
  for (const panel of Object.values(PANELS)) if (panel.render) panel.render(page);
  document.documentElement.dataset.ready = "";
  const job = state.job ? `${state.job.lesson} ${state.job.started} ${state.job.state}` : "";
  if (job !== lastJob && lastJob !== "" && state.job) announce(state.job);
  lastJob = job || "none";
  if (PANELS[opened].show && !state.busy) PANELS[opened].changed && PANELS[opened].changed(page);
}

function announce(job) {
  if (job.state === "done") {
    const count = Object.values(job.result.train).reduce((sum, some) => sum + some, 0);
    say(`Learned ${plural(count, "picture")} of ${plural(Object.keys(job.result.train).length, "class")}. ` +
      "Try the model now.");
  }
  if (job.state === "cancelled") say("The lesson was cancelled. Its pictures are back in Teach.");
  if (job.state === "failed") say(job.message, "error");
}

// ------------------------------------------------------------------ the lesson at the top

function renderLesson(state) {
  const box = $("lesson"), { job } = state;
  const active = job && ["running", "stopping"].includes(job.state);
  box.hidden = !active && !state.unfinished;
  if (active) renderProgress(box, job);
  else if (state.unfinished) renderUnfinished(box, state);
  else box.replaceChildren();
}

function renderProgress(box, job) {
  if (box.dataset.kind !== "progress" || !box.firstChild) {
    box.dataset.kind = "progress";
    box.replaceChildren(
      h("div", { class: "row" }, h("strong", { class: "stage" }), h("span", { class: "left" }),
        h("button", { type: "button", class: "cancel", onclick: (event) => run(async () => {
          await api.post("lesson/cancel");
          await refresh();
        }, event.target) }, "Cancel")),
      h("div", { class: "progress", role: "progressbar", "aria-label": "Progress of the lesson", "aria-valuemin": "0",
        "aria-valuemax": "100" }, h("div", { class: "fill" })),
      h("ol", { class: "stages" }, STAGES.map((name) => h("li", { "data-stage": name }, STAGE_NAMES[name]))));
  }
  const counting = ["reading", "features"].includes(job.stage);
  const stage = counting ? "reading" : STAGE_NAMES[job.stage] ? job.stage : "generalist";
  const stopping = job.state === "stopping";
  const detail = counting ? ` (${job.done} of ${job.total})`
    : ["specialist", "generalist", "projection"].includes(stage) ? ` (epoch ${job.done} of ${job.total})` : "";
  box.querySelector(".stage").textContent = stopping ? "Stopping…" : STAGE_NAMES[stage] + detail;
  box.querySelector(".left").textContent = job.seconds_left === null ? "" : `about ${duration(job.seconds_left)} left`;
  box.querySelector(".cancel").disabled = stopping;
  const bar = box.querySelector(".progress");
  bar.setAttribute("aria-valuenow", String(Math.round(100 * job.fraction)));
  bar.firstChild.style.width = `${100 * job.fraction}%`;
  const at = STAGES.indexOf(stage);
  [...box.querySelectorAll(".stages li")].forEach((item, index) => {
    item.className = index < at ? "past" : index === at ? "now" : "";
    if (index === at) item.setAttribute("aria-current", "step");
    else item.removeAttribute("aria-current");
  });
}

function renderUnfinished(box, state) {
  if (box.dataset.kind === "unfinished" && box.firstChild) return;
  box.dataset.kind = "unfinished";
  const act = (path) => (event) => run(async () => {
    await api.post(path);
    await refresh();
  }, event.target);
  box.replaceChildren(h("div", { class: "row" },
    h("p", {}, h("strong", {}, "A lesson is unfinished. "),
      state.model.ready ? "The model still answers as it did before this lesson." : "Nothing is lost."),
    h("button", { type: "button", class: "primary", onclick: act("lesson/continue") }, "Continue the lesson"),
    h("button", { type: "button", class: "quiet", onclick: act("lesson/discard") }, "Discard it, keep the pictures")));
}

// ------------------------------------------------------------------ models

async function newModel() {
  const name = await ask({ title: "New model", field: "Name", button: "Create" });
  if (!name) return;
  await api.post("models", { name });
  switchModel(name);
}

function switchModel(name) {
  api.setModel(name);
  if (page.readOnly) {
    readOnly();
    return;
  }
  for (const panel of Object.values(PANELS)) if (panel.reset) panel.reset();
  lastJob = "";
  refresh().then(() => openTab(opened));
}

async function main() {
  const url = new URL(location.href);
  const start = PANELS[url.hash.slice(1)] ? url.hash.slice(1) : "teach";
  history.replaceState(null, "", `/#${start}`); // the address in the history must not contain the token
  setUpTabs();
  $("new-model").addEventListener("click", () => run(newModel));
  $("model").addEventListener("change", () => switchModel($("model").value));
  for (const name of ["dragover", "drop"]) window.addEventListener(name, (event) => event.preventDefault());
  try {
    await api.get("state");
  } catch {
    return readOnly();
  }
  for (const panel of Object.values(PANELS)) panel.setUp(page);
  await refresh();
  openTab(start);
  return null;
}

// With --read-only there is only the part that predicts.
async function readOnly() {
  const facts = await run(() => api.get("model"));
  if (!facts) return;
  const first = !page.readOnly;
  page.readOnly = true;
  const { models } = await api.get("models");
  page.state = { models, model: facts, several: false, draft: [], busy: false, job: null, unfinished: null };
  for (const tab of $("tabs").children) tab.hidden = tab.id !== "tab-try";
  if (first) tryout.setUp(page);
  else tryout.reset();
  choose($("model"), models.map((name) => ({ value: name, label: name })), facts.name);
  $("model").disabled = models.length < 2;
  $("new-model").hidden = true;
  $("summary").textContent = `${plural(facts.classes.length, "class")}, read-only`;
  tryout.render(page);
  openTab("try");
  document.documentElement.dataset.ready = "";
}

main();
