// Teach: classes with pictures, from files, folders, zip files or the camera.

import * as api from "./api.js";
import * as camera from "./camera.js";
import { choose, h, plural, run, say, sync } from "./dom.js";
import { chosenFolder, chunks, dropped, dropTarget, isZip } from "./files.js";

const BURST_MS = 120; // between two recorded pictures
const ACCEPT = "image/*,.zip";
const FEW_PICTURES = 8;
let page = null, root = null, local = [], uploading = 0;
const selected = new Set();

export function reset() {
  local = [];
  selected.clear();
  for (const card of root.querySelectorAll(".card")) stopCamera(card);
}

export function hide() {
  for (const card of root.querySelectorAll(".card")) stopCamera(card);
}

export function setUp(owner) {
  page = owner;
  root = document.getElementById("teach");
  const folder = h("input", { type: "file", webkitdirectory: "", multiple: true, hidden: true, onchange: () => {
    addGroups(chosenFolder(folder.files));
    folder.value = "";
  } });
  const zip = h("input", { type: "file", accept: ".zip", hidden: true, onchange: () => {
    addGroups([{ folder: null, files: [...zip.files] }]);
    zip.value = "";
  } });
  const bulk = h("div", { class: "bulk" },
    h("p", {}, "Pictures already sorted? Drop a folder or a zip file here: each folder in it becomes a class."),
    h("div", { class: "row" }, folder, zip,
      h("button", { type: "button", onclick: () => folder.click() }, "Choose a folder"),
      h("button", { type: "button", onclick: () => zip.click() }, "Choose a zip file")));
  dropTarget(bulk, async (transfer) => addGroups(await dropped(transfer)));
  root.append(
    h("div", { class: "intro" }, h("h2", {}, "Teach"),
      h("p", { class: "hint" }, "Give each class a name and some pictures, then press Teach. " +
        "You can add more classes and pictures at any later time.")),
    h("div", { class: "cards", id: "cards" }),
    h("div", { class: "row" },
      h("button", { type: "button", id: "add-class", onclick: () => addClass() }, "Add a class"),
      h("div", { class: "row", id: "known", role: "group", "aria-label": "Add pictures to a class the model knows" })),
    bulk,
    h("div", { class: "start" },
      h("div", { class: "grow" }, h("strong", { id: "counts" }), h("p", { class: "hint", id: "advice" })),
      h("label", { class: "field inline", id: "backbone-field" }, h("span", {}, "Network"),
        h("select", { id: "backbone" })),
      h("button", { type: "button", class: "primary big", id: "start", onclick: start }, "Teach")));
}

function classes() {
  const draft = page.state.draft.map((one) => ({ ...one, local: false }));
  const names = new Set(draft.map((one) => one.name));
  if (!draft.length && !local.length && !page.state.model.ready && !page.state.busy && !page.state.unfinished) {
    local = [{ name: "Class 1" }, { name: "Class 2" }];
  }
  local = local.filter((one) => !names.has(one.name));
  return [...draft, ...local.map((one) => ({ ...one, pictures: [], known: isKnown(one.name), local: true }))];
}

const isKnown = (name) => page.state.model.classes.includes(name);

export function render() {
  const all = classes();
  sync(root.querySelector("#cards"), all, (one) => one.name, createCard, updateCard);
  const names = new Set(all.map((one) => one.name));
  sync(root.querySelector("#known"), page.state.model.classes.filter((name) => !names.has(name)), (name) => name,
    (name) => h("button", { type: "button", class: "quiet", "aria-label": `Add pictures to ${name}`,
      onclick: () => addClass(name) }, `+ ${name}`));
  const filled = all.filter((one) => one.pictures.length);
  const count = filled.reduce((sum, one) => sum + one.pictures.length, 0);
  const total = new Set([...filled.map((one) => one.name), ...page.state.model.classes]).size;
  const few = filled.filter((one) => one.pictures.length < FEW_PICTURES);
  root.querySelector("#counts").textContent = uploading ? `Adding pictures… ${uploading} left`
    : count ? `${plural(count, "picture")} of ${plural(filled.length, "class")}` : "No pictures yet";
  root.querySelector("#advice").textContent = !count ? "Add pictures of at least two classes."
    : total < 2 ? "Add pictures of another class."
      : few.length ? `${few.map((one) => one.name).join(", ")}: ${FEW_PICTURES} or more pictures work better.`
        : "Some pictures are held out, to test the model on pictures that it has not seen.";
  root.querySelector("#start").disabled = !count || total < 2 || uploading > 0 || page.state.busy ||
    Boolean(page.state.unfinished);
  root.querySelector("#backbone-field").hidden = page.state.backbones.length < 2;
  choose(root.querySelector("#backbone"), page.state.backbones);
}

function addClass(known = null) {
  const taken = new Set(classes().map((one) => one.name).concat(page.state.model.classes));
  let number = 1;
  while (taken.has(`Class ${number}`)) number += 1;
  local.push({ name: known || `Class ${number}` });
  render();
  const cards = root.querySelectorAll(".card"), card = cards[cards.length - 1];
  card.querySelector(known ? ".add" : ".name").focus();
  if (!known) card.querySelector(".name").select();
}

// ------------------------------------------------------------------ one class

function createCard(item) {
  const file = h("input", { type: "file", accept: ACCEPT, multiple: true, hidden: true, onchange: () => {
    add(card.dataset.key, [...file.files]);
    file.value = "";
  } });
  const name = h("input", { class: "name", type: "text", value: item.name, maxlength: "100", autocomplete: "off",
    spellcheck: false, "aria-label": "Name of the class", onchange: () => rename(card, name),
    onkeydown: (event) => { if (event.key === "Enter") name.blur(); } });
  const card = h("article", { class: "card" },
    h("div", { class: "row head" }, name, h("span", { class: "badge" }),
      h("button", { type: "button", class: "quiet close", onclick: () => remove(card) }, "×")),
    h("div", { class: "row" }, file,
      h("button", { type: "button", class: "add", onclick: () => file.click() }, "Add pictures"),
      h("button", { type: "button", class: "use-camera", "aria-pressed": "false", onclick: (event) =>
        run(() => toggleCamera(card), event.currentTarget) }, "Camera")),
    h("div", { class: "camera", hidden: true }),
    h("div", { class: "thumbs", role: "group" }),
    h("p", { class: "empty" }, "Drop pictures here"),
    h("div", { class: "row selection", hidden: true },
      h("span", { class: "count" }),
      h("label", {}, h("span", { class: "hidden" }, "Move the selected pictures to"),
        h("select", { class: "move", onchange: (event) => move(card, event.target) })),
      h("button", { type: "button", class: "quiet", onclick: () => removeSelected(card) }, "Remove")));
  dropTarget(card, async (transfer) => {
    const moved = transfer.getData("text/itl");
    if (moved) return moveTo([moved], card.dataset.key);
    const groups = await dropped(transfer);
    return add(card.dataset.key, groups.flatMap((group) => group.files));
  });
  return card;
}

function updateCard(card, item) {
  const name = card.querySelector(".name");
  if (document.activeElement !== name) name.value = item.name;
  card.setAttribute("aria-label", `Class ${item.name}`);
  card.querySelector(".close").setAttribute("aria-label", `Remove ${item.name} from the lesson`);
  const badge = card.querySelector(".badge");
  badge.textContent = item.known ? "known" : "new";
  badge.title = item.known ? "These pictures are added to a class that the model knows." : "A new class.";
  sync(card.querySelector(".thumbs"), item.pictures, (id) => id, createThumb, (node, id) => {
    node.setAttribute("aria-pressed", String(selected.has(id)));
  });
  card.querySelector(".thumbs").setAttribute("aria-label", `${plural(item.pictures.length, "picture")} of ${item.name}`);
  const empty = card.querySelector(".empty");
  empty.textContent = item.pictures.length ? plural(item.pictures.length, "picture") : "Drop pictures here";
  empty.classList.toggle("drop", !item.pictures.length);
  const mine = item.pictures.filter((id) => selected.has(id));
  card.querySelector(".selection").hidden = !mine.length;
  card.querySelector(".selection .count").textContent = `${mine.length} selected`;
  const others = classes().map((one) => one.name).filter((other) => other !== item.name);
  choose(card.querySelector(".move"), [{ value: "", label: "Move to…" },
    ...others.map((other) => ({ value: other, label: other }))], "");
}

function createThumb(id) {
  return h("button", { type: "button", class: "thumb", "aria-pressed": "false", draggable: true,
    "aria-label": "Picture: press to select, Delete to remove",
    onclick: () => {
      if (!selected.delete(id)) selected.add(id);
      render();
    },
    onkeydown: (event) => {
      if (event.key !== "Delete" && event.key !== "Backspace") return;
      const next = event.currentTarget.nextSibling || event.currentTarget.previousSibling;
      selected.delete(id);
      run(async () => {
        await api.post("pictures/remove", { pictures: [id] });
        await page.refresh();
        if (next) next.focus();
      });
    },
    ondragstart: (event) => event.dataTransfer.setData("text/itl", id) },
  h("img", { src: api.picture(id), alt: "", loading: "lazy", draggable: false }));
}

function rename(card, input) {
  const old = card.dataset.key, name = input.value.trim();
  const one = local.find((other) => other.name === old);
  if (!name || name === old) {
    input.value = old;
    return;
  }
  if (one) {
    const keep = !page.state.draft.some((other) => other.name === name);
    one.name = name;
    if (keep) card.dataset.key = name;
    render();
    return;
  }
  run(async () => {
    await api.post("classes/rename", { old, new: name });
    card.dataset.key = name;
    await page.refresh();
  });
}

function remove(card) {
  const name = card.dataset.key;
  stopCamera(card);
  local = local.filter((one) => one.name !== name);
  if (!page.state.draft.some((one) => one.name === name)) {
    card.remove();
    root.querySelector("#add-class").focus();
    return render();
  }
  return run(async () => {
    await api.post("classes/remove", { name });
    await page.refresh();
    root.querySelector("#add-class").focus();
  });
}

const selectedIn = (card) => [...card.querySelectorAll(".thumb")].map((one) => one.dataset.key)
  .filter((id) => selected.has(id));

function removeSelected(card) {
  const pictures = selectedIn(card);
  pictures.forEach((id) => selected.delete(id));
  run(async () => {
    await api.post("pictures/remove", { pictures });
    await page.refresh();
    card.querySelector(".add").focus();
  });
}

function move(card, select) {
  if (select.value) moveTo(selectedIn(card), select.value);
}

function moveTo(pictures, name) {
  pictures.forEach((id) => selected.delete(id));
  run(async () => {
    await api.post("pictures/move", { pictures, class: name });
    await page.refresh();
  });
}

// ------------------------------------------------------------------ adding pictures

async function add(name, files) {
  await addGroups([{ folder: name, files }], true);
}

// Sends groups of files; zip files among files without a class are unpacked by the server.
async function addGroups(groups, quiet = false) {
  const jobs = [];
  for (const { folder, files } of groups) {
    const usable = folder === null ? files.filter(isZip) : files;
    if (usable.length < files.length) say("Drop single pictures onto a class.", "error");
    for (const some of chunks(usable)) jobs.push([some, folder === null ? {} : { class: folder }]);
  }
  let added = 0;
  const problems = [];
  uploading += jobs.reduce((sum, [some]) => sum + some.length, 0);
  render();
  for (const [some, fields] of jobs) {
    const result = await run(() => api.send("pictures", some, fields));
    uploading -= some.length;
    if (result) {
      added += result.added;
      problems.push(...result.problems);
    }
    await page.refresh();
  }
  render();
  if (problems.length) {
    const more = problems.length > 1 ? `, and ${problems.length - 1} more` : "";
    say(`${plural(problems.length, "file")} not added: ${problems[0].name}: ${problems[0].why}${more}`, "error");
  } else if (added && !quiet) say(`Added ${plural(added, "picture")}.`);
}

// ------------------------------------------------------------------ camera

async function toggleCamera(card) {
  if (!card.querySelector(".camera").hidden) return stopCamera(card);
  for (const other of root.querySelectorAll(".card")) stopCamera(other);
  const video = camera.preview(), box = card.querySelector(".camera");
  const record = h("button", { type: "button", class: "primary record", disabled: true }, "Hold to record");
  box.replaceChildren(video, record);
  box.hidden = false;
  card.querySelector(".use-camera").setAttribute("aria-pressed", "true");
  try {
    await camera.start(video, card);
  } catch (error) {
    stopCamera(card);
    throw error;
  }
  let recording = false;
  const begin = async (event) => {
    event.preventDefault();
    if (recording) return;
    recording = true;
    record.classList.add("on");
    const files = [];
    while (recording && video.isConnected) {
      files.push(await camera.frame(video, `camera-${files.length}.jpg`));
      record.textContent = plural(files.length, "picture");
      await new Promise((resolve) => setTimeout(resolve, BURST_MS));
    }
    record.classList.remove("on");
    record.textContent = "Hold to record";
    await add(card.dataset.key, files);
  };
  const end = () => { recording = false; };
  record.addEventListener("pointerdown", begin);
  for (const name of ["pointerup", "pointerleave", "pointercancel", "blur"]) record.addEventListener(name, end);
  record.addEventListener("keydown", (event) => {
    if ((event.key === " " || event.key === "Enter") && !event.repeat) begin(event);
  });
  record.addEventListener("keyup", end);
  record.disabled = false;
  return record.focus();
}

function stopCamera(card) {
  const box = card.querySelector(".camera");
  if (box.hidden) return;
  box.hidden = true;
  box.replaceChildren();
  card.querySelector(".use-camera").setAttribute("aria-pressed", "false");
  camera.stop(card);
}

function start(event) {
  hide();
  run(async () => {
    await api.post("lesson", { backbone: root.querySelector("#backbone").value || null });
    local = [];
    await page.refresh();
  }, event.target);
}
