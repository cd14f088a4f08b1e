"use strict";
(async () => {
  const { tabs, charts, lead, first, pool, selection: selectable } = JSON.parse(document.getElementById("payload").textContent);
  const root = document.documentElement;
  const selection = makeSelection(selectable || {});
  const state = { ...first }; // the value of every selector
  const drawn = []; // every figure, drawn when its tab is first shown
  const address = new URLSearchParams(location.hash.slice(1));

  for (const chart of Object.values(charts)) { // resolve references to lists that charts share
    for (const part of [chart, ...(chart.series || [])]) {
      for (const name of ["x", "hover", "xs", "descriptions"]) if (part[name] && part[name].$ !== undefined) part[name] = pool[part[name].$];
    }
  }
  for (const name of ["run", "group", "set", "stream", "reference", "measure", "task"]) if (address.has(name)) state[name] = address.get(name);
  for (const [name, values] of Object.entries(selection.all)) {
    const given = address.getAll(name).filter((value) => values.includes(value));
    if (given.length) selection.chosen[name] = new Set(given);
  }

  async function loadLibrary() { // the charting library is compressed inside the page
    const packed = Uint8Array.from(atob(document.getElementById("library").textContent), (c) => c.charCodeAt(0));
    const script = element("script");
    script.textContent = await new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
    document.head.append(script);
  }

  // ------------------------------------------------------------------ the numbers of a chart as a table
  const MAX_TABLE_ROWS = 400;
  function numbers(chart) {
    const table = element("table"), head = table.createTHead().insertRow(), body = table.createTBody();
    const line = (cells) => { const row = body.insertRow(); cells.forEach((c) => { row.insertCell().textContent = c; }); };
    const heads = (cells) => cells.forEach((c) => { const th = element("th"); th.textContent = c; head.append(th); });
    const round = (v) => (typeof v === "number" ? String(Math.round(v * 100) / 100) : v);
    if (chart.heatmap) {
      const { columns, rows, values, labels: [row, column] } = chart.heatmap;
      heads([`${row} \\ ${column}`, ...columns.slice(0, 60)]);
      rows.slice(0, 60).forEach((name, k) => line([name, ...values[k].slice(0, 60).map((v) => (v === null ? "" : round(v)))]));
    } else {
      heads(["series", "position", "value", chart.series.some((s) => s.interval === "ci95") ? "± (95 %)" : "±"]);
      let left = MAX_TABLE_ROWS;
      for (const s of chart.series) {
        const x = Charts.at(chart, s), places = Charts.says(chart, s);
        s.y.forEach((v, k) => { if (v !== null && left-- > 0) line([s.name, places[k] || x[k], round(v), s.error && s.error[k] !== null && s.error[k] !== undefined ? round(s.error[k]) : ""]); });
      }
      if (left < 0) line([`… and ${-left} more`, "", "", ""]);
    }
    return table;
  }

  // ------------------------------------------------------------------ images
  function gallery(host, images) {
    host.replaceChildren();
    const { uri, columns, rows } = images.sheet;
    host.style.setProperty("--across", `${columns * 100}%`);
    host.style.setProperty("--down", `${rows * 100}%`);
    for (const group of images.groups) {
      const box = element("div", "group"), head = element("div"), tiles = element("div", "tiles");
      if (group.title) { const b = element("b"); b.textContent = group.title; head.append(b); }
      const more = element("small"); more.textContent = group.more; head.append(more);
      for (const item of group.items) {
        const tile = element("div", "tile"), picture = element("i"), note = element("span");
        const across = columns > 1 ? ((item.tile % columns) / (columns - 1)) * 100 : 0;
        const down = rows > 1 ? (Math.floor(item.tile / columns) / (rows - 1)) * 100 : 0;
        picture.style.backgroundImage = `url(${uri})`;
        picture.style.backgroundPosition = `${across}% ${down}%`;
        picture.setAttribute("role", "img");
        picture.setAttribute("aria-label", item.text);
        tile.title = item.text;
        note.textContent = item.note;
        tile.append(picture, note);
        tiles.append(tile);
      }
      box.append(head, tiles);
      host.append(box);
    }
  }

  // ------------------------------------------------------------------ figures
  function element(tag, cls) { const made = document.createElement(tag); if (cls) made.className = cls; return made; }
  function button(text, action) { const made = element("button"); made.type = "button"; made.textContent = text; made.addEventListener("click", action); return made; }
  const LABELS = { run: "Run", group: "Runs", set: "On", stream: "On", reference: "Compared with", measure: "Measure", task: "Task" };
  const MAX_GRID = 12; // charts side by side

  function selector(view, name, ids) {
    const label = element("label"), select = element("select");
    label.append(`${LABELS[name]} `, select);
    select.dataset.name = name;
    select.id = `choose-${ids}-${name}`;
    select.addEventListener("change", () => { state[name] = select.value; update(name); });
    fill(select, view.selectors[name], name);
    return label;
  }

  function fill(select, options, name) { // offer the selected choices; keep the value if possible
    const offered = options.filter(([value]) => selection.offers(name, value));
    select.replaceChildren(...offered.map(([value, text]) => new Option(text, value)));
    select.parentElement.hidden = options.length < 2;
    if (!offered.length) return;
    const groupOf = (value) => (selectable.runs && selectable.runs[value] ? selectable.runs[value].group : value);
    const wanted = offered.find(([value]) => value === state[name]) || offered.find(([value]) => name === "run" && groupOf(value) === groupOf(state.run)) || offered[0];
    select.value = wanted[0];
    if (state[name] === undefined) state[name] = first[name] = wanted[0];
  }

  const keyOf = (view, host) => view.key.replace(/\{(\w+)\}/g, (_, name) => host.querySelector(`select[data-name=${name}]`).value);

  function saver(host, name) {
    const box = element("div", "save");
    const file = () => (host.closest("figure").dataset.key || name).replace(/[^\w+-]+/g, "-");
    box.append("Save as ", ...["svg", "png"].map((format) => button(format.toUpperCase(), () => Charts.save(host, format, file()))));
    return box;
  }

  function drawGrid(view, figure, body) {
    const offered = view.selectors["*"].filter(([value]) => selection.offers("group", value)).slice(0, MAX_GRID);
    const key = keyOf(view, figure);
    figure.dataset.key = key;
    while (body.children.length > offered.length) { Plotly.purge(body.lastChild.querySelector(".plot")); body.lastChild.remove(); }
    offered.forEach(([value, name], k) => {
      if (!body.children[k]) { const box = element("div"), place = element("div", "plot"); box.append(element("h3"), place, saver(place, name)); body.append(box); }
      body.children[k].firstChild.textContent = name;
      const chart = selection.apply(charts[key.replace("*", value)]);
      if (chart) Charts.plot(body.children[k].querySelector(".plot"), chart, name);
    });
  }

  function drawChart(view, figure, body, key) {
    const stored = charts[keyOf(view, figure)], chart = stored && view.kind === "chart" ? selection.apply(stored) : stored;
    figure.dataset.key = keyOf(view, figure);
    figure.classList.toggle("blank", !chart);
    if (!chart) {
      if (body.data) Plotly.purge(body);
      body.textContent = stored ? "Nothing of this is selected." : view.empty || "This run did not record it.";
      key.replaceChildren();
      return null;
    }
    if (view.kind === "gallery") { body.classList.toggle("wide", view.key.startsWith("wrong")); gallery(body, chart); return chart; }
    if (!body.data) body.textContent = "";
    key.replaceChildren(...Object.entries(chart.names || {}).map(([role, name]) => {
      const one = element("span"); one.textContent = `${role[0].toUpperCase()} ${name}`; one.style.setProperty("--swatch", Charts.css(`band-${role}`)); return one;
    }));
    Charts.plot(body, chart, view.title, state.task);
    return chart;
  }

  function build(view, panel, ids) {
    const figure = element("figure"), title = element("h2"), caption = element("figcaption"), controls = element("div", "controls");
    const where = view.selectors.set || view.selectors.stream || [];
    title.textContent = where.length === 1 ? `${view.title}: ${where[0][1]}` : view.title;
    caption.textContent = view.caption;
    for (const name of Object.keys(view.selectors)) if (name !== "*") controls.append(selector(view, name, ids));
    const key = element("div", "key"), body = element("div", view.kind === "grid" ? "grid" : view.kind === "gallery" ? "gallery" : "plot");
    figure.append(title, caption, controls, key, body);
    const details = element("details"), summary = element("summary"), scroll = element("div", "scroll");
    summary.textContent = "The numbers";
    scroll.tabIndex = 0;
    details.append(summary, scroll);
    let shown = null;
    details.addEventListener("toggle", () => { if (details.open && shown) scroll.replaceChildren(numbers(shown)); });
    const draw = () => {
      if (view.kind === "grid") { drawGrid(view, figure, body); return; }
      shown = drawChart(view, figure, body, key);
      if (details.open && shown) scroll.replaceChildren(numbers(shown));
    };
    if (view.kind === "chart") figure.append(saver(body, view.title), details);
    panel.append(figure);
    drawn.push({ view, panel: panel.closest("[role=tabpanel]"), figure, draw, seen: false });
  }

  function update(name) { // a selector (`name`) or the selection of methods, sizes and seeds (no name) has changed
    for (const one of drawn) {
      const selects = [...one.figure.querySelectorAll("select[data-name]")];
      if (name && !selects.some((select) => select.dataset.name === name)) continue;
      for (const select of selects) if (!name || select.dataset.name === name) fill(select, one.view.selectors[select.dataset.name], select.dataset.name);
      one.seen = false;
    }
    if (!name) updateTable();
    look();
    remember();
  }
  function look() { for (const one of drawn) if (!one.panel.hidden && !one.seen) { one.seen = true; one.draw(); } }

  // ------------------------------------------------------------------ the table of the overview: selection, best values, sorting
  const LOWER_IS_BETTER = ["forgetting", "seconds"];
  const table = document.querySelector("table.cells");
  function updateTable() {
    if (!table) return;
    const best = {};
    const cells = [...table.tBodies[0].rows].flatMap((row) => {
      const group = selection.groups[row.dataset.group];
      row.hidden = !selection.allows(row.dataset.group);
      return [...row.querySelectorAll("td[data-measure]:not([data-measure=''])")].map((cell) => {
        const measure = cell.dataset.measure, found = selection.statistics(group.values[measure]);
        const digits = measure !== "seconds" ? 2 : found.mean >= 100 ? 0 : 1;
        const text = found.mean === null ? "–" : found.mean.toFixed(digits) + (found.error === null || measure === "seconds" ? "" : ` ± ${found.error.toFixed(digits)}`);
        cell.replaceChildren(text);
        if (found.count === 1 && measure.endsWith("_il")) { const small = element("small"); small.textContent = "(1 seed)"; cell.append(" ", element("br"), small); }
        cell.dataset.value = found.mean === null ? "" : found.mean;
        return { cell, measure, set: group.set, mean: row.hidden ? null : found.mean };
      });
    });
    for (const { measure, set, mean } of cells) {
      const slot = (best[`${set} ${measure}`] = best[`${set} ${measure}`] || { mean: null, distinct: new Set() });
      if (mean === null) continue;
      slot.distinct.add(mean);
      if (slot.mean === null || (LOWER_IS_BETTER.includes(measure) ? mean < slot.mean : mean > slot.mean)) slot.mean = mean;
    }
    for (const { cell, measure, set, mean } of cells) {
      const slot = best[`${set} ${measure}`];
      cell.classList.toggle("best", mean !== null && slot.distinct.size > 1 && mean === slot.mean);
    }
    for (const small of table.querySelectorAll("td[data-measure=''] small")) small.hidden = !selection.allSeeds(); // differences of all seeds
  }
  function sortBy(column, heading) {
    const descending = heading.getAttribute("aria-sort") !== "descending";
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    heading.setAttribute("aria-sort", descending ? "descending" : "ascending");
    const value = (row) => { const cell = row.cells[column]; return cell.dataset.value || cell.textContent; };
    const compare = (a, b) => (isNaN(parseFloat(a)) || isNaN(parseFloat(b)) ? String(b).localeCompare(String(a)) : parseFloat(b) - parseFloat(a));
    const rows = [...table.tBodies[0].rows].sort((a, b) => compare(value(a), value(b)) * (descending ? 1 : -1));
    table.tBodies[0].append(...rows);
  }
  if (table) [...table.tHead.rows[0].cells].forEach((heading, k) => heading.firstChild.addEventListener("click", () => sortBy(k, heading)));

  // ------------------------------------------------------------------ methods, memory sizes and seeds, once for all tabs
  const FILTERS = { method: "Methods", size: "Memory sizes", seed: "Seeds" };
  function buildFilters() {
    const bar = document.getElementById("filters");
    for (const [name, title] of Object.entries(FILTERS)) {
      const values = selection.all[name], chosen = selection.chosen[name];
      if (values.length < 2) continue;
      const box = element("details", "filter"), summary = element("summary"), choices = element("div", "choices");
      const count = () => { summary.textContent = `${title}: ${chosen.size === values.length ? "all" : `${chosen.size} of ${values.length}`}`; };
      const inputs = values.map((value) => {
        const label = element("label"), input = element("input");
        input.type = "checkbox";
        input.value = value;
        input.checked = chosen.has(value);
        input.addEventListener("change", () => { if (input.checked) chosen.add(value); else chosen.delete(value); count(); update(); });
        label.append(input, ` ${value}`);
        choices.append(label);
        return input;
      });
      const setAll = (on) => { inputs.forEach((input) => { input.checked = on; if (on) chosen.add(input.value); else chosen.delete(input.value); }); count(); update(); };
      const both = element("div", "all");
      both.append(button("All", () => setAll(true)), button("None", () => setAll(false)));
      choices.prepend(both);
      box.dataset.name = name;
      box.append(summary, choices);
      bar.append(box);
      count();
    }
    bar.hidden = !bar.children.length;
  }

  // ------------------------------------------------------------------ tabs, by mouse and keyboard; the address names tab and selection
  const main = document.querySelector("main"), buttons = [...document.querySelectorAll("[role=tab]")];
  let open = 0;
  function remember() {
    const words = new URLSearchParams();
    if (open) words.set("tab", buttons[open].textContent);
    for (const [name, value] of Object.entries(state)) if (value && value !== first[name] && !(name === "measure" && value === "class_il")) words.set(name, value);
    for (const [name, chosen] of Object.entries(selection.chosen)) if (!selection.isDefault(name)) for (const value of chosen) words.append(name, value);
    const hash = words.toString();
    if (hash !== location.hash.slice(1)) history.replaceState(null, "", `#${hash}`);
  }
  function choose(k, focus) {
    open = k;
    buttons.forEach((one, n) => { one.setAttribute("aria-selected", String(n === k)); one.tabIndex = n === k ? 0 : -1; panels[n].hidden = n !== k; });
    if (focus) buttons[k].focus();
    look();
    remember();
  }

  // ------------------------------------------------------------------ light and dark theme, printing
  const dark = matchMedia("(prefers-color-scheme: dark)"), toggle = document.getElementById("theme");
  const redraw = () => { drawn.forEach((one) => { one.seen = false; }); look(); };
  function theme(name) {
    root.dataset.theme = name;
    root.style.colorScheme = name;
    toggle.textContent = name === "dark" ? "Light" : "Dark";
    redraw();
  }
  let before = null; // the theme before printing
  function print(on) { // all tabs, in the light theme, as wide as a sheet of paper
    if (on === (before !== null)) return;
    const name = on ? "light" : before;
    before = on ? root.dataset.theme : null;
    root.classList.toggle("print", on);
    panels.forEach((panel, k) => { panel.hidden = !on && k !== open; });
    theme(name);
  }

  try { await loadLibrary(); } catch (error) {
    const note = element("p", "note");
    note.textContent = `The figures need a newer browser (${error}).`;
    main.prepend(note);
    root.dataset.ready = "true";
    return;
  }
  tabs.forEach((tab, k) => {
    const panel = element("section");
    panel.id = `panel-${k + 1}`;
    panel.dataset.title = tab.name;
    panel.setAttribute("role", "tabpanel");
    panel.setAttribute("aria-labelledby", `tab-${k + 1}`);
    panel.tabIndex = 0;
    panel.hidden = true;
    main.append(panel);
    tab.views.forEach((view, v) => build(view, panel, `${k}-${v}`));
  });
  lead.forEach((view, v) => build(view, document.getElementById("lead"), `lead-${v}`));
  const panels = [...document.querySelectorAll("[role=tabpanel]")];
  buttons.forEach((one, k) => {
    one.addEventListener("click", () => choose(k, false));
    one.addEventListener("keydown", (event) => {
      const step = { ArrowRight: k + 1, ArrowLeft: k - 1, Home: 0, End: buttons.length - 1 }[event.key];
      if (step === undefined) return;
      event.preventDefault();
      choose((step + buttons.length) % buttons.length, true);
    });
  });
  toggle.addEventListener("click", () => theme(root.dataset.theme === "dark" ? "light" : "dark"));
  dark.addEventListener("change", () => theme(dark.matches ? "dark" : "light"));
  addEventListener("beforeprint", () => print(true));
  addEventListener("afterprint", () => print(false));
  matchMedia("print").addEventListener("change", (event) => print(event.matches));
  let timer = 0, width = innerWidth;
  addEventListener("resize", () => { // numbers in cells and letters in bands depend on the width
    clearTimeout(timer);
    timer = setTimeout(() => { if (innerWidth !== width) { width = innerWidth; redraw(); } }, 200);
  });
  buildFilters();
  updateTable();
  theme(dark.matches ? "dark" : "light");
  choose(Math.max(0, buttons.findIndex((one) => one.textContent === address.get("tab"))), false);
  root.dataset.ready = "true";
})();
