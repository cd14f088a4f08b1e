"use strict";
(() => {
  const { tabs, charts, lead, first, pool } = JSON.parse(document.getElementById("payload").textContent);
  const root = document.documentElement;
  const state = { ...first };
  const drawn = []; // {view, panel, figure, draw, seen}: every figure, drawn when its tab is first shown

  for (const chart of Object.values(charts)) { // resolve references to lists that charts share
    for (const part of [chart, ...(chart.series || [])]) {
      for (const name of ["x", "hover", "xs", "descriptions"]) if (part[name] && part[name].$ !== undefined) part[name] = pool[part[name].$];
    }
  }

  // ------------------------------------------------------------------ colors, dashes, symbols: color is never the only cue
  const css = (name) => getComputedStyle(root).getPropertyValue(`--${name}`).trim();
  const ROLES = ["a", "b", "c", "d", "e", "f", "g", "h"];
  const DASHES = ["solid", "dash", "dot", "dashdot", "longdash", "longdashdot", "solid", "dash"];
  const SYMBOLS = ["circle", "square", "diamond", "triangle-up", "cross", "x", "star", "hexagon"];
  const PATTERNS = { specialist: "", tangent: "/", projection: "x", a: "", b: "\\", c: "|", g: ".", h: "-" };
  const STAGE = { specialist: ["solid", "circle"], tangent: ["solid", "diamond"], projection: ["solid", "square"] };
  const dash = (role) => (STAGE[role] || [DASHES[ROLES.indexOf(role)] || "solid"])[0];
  const symbol = (role) => (STAGE[role] || ["", SYMBOLS[ROLES.indexOf(role)] || "circle"])[1];
  const rgb = (hex) => [1, 3, 5].map((k) => parseInt(hex.slice(k, k + 2), 16));
  const mix = (low, high, t) => rgb(low).map((v, k) => Math.round(v + (rgb(high)[k] - v) * t));
  const luminance = (colour) => {
    const [r, g, b] = colour.map((v) => ((v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const inkOn = (colour) => (luminance(colour) > 0.179 ? "#000000" : "#ffffff");

  // ------------------------------------------------------------------ charts as the charting library expects them
  const at = (chart, s) => s.x || chart.xs.slice(s.start || 0, (s.start || 0) + s.y.length);
  const says = (chart, s) => s.hover || (chart.descriptions || []).slice(s.start || 0, (s.start || 0) + s.y.length);
  const short = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);
  const show = (value, unit) => (unit === "%" || unit === "s" ? value.toFixed(2) : String(value)) + (unit ? ` ${unit}` : "");

  const MAX_MARKERS = 4000; // lines with more points than this have no markers

  function trace(chart, s, width) {
    const unit = chart.unit === undefined ? "%" : chart.unit;
    const lone = s.kind === "bars" && !chart.stacked;
    const x = at(chart, s), places = says(chart, s), colour = css(lone ? "bar" : s.role || "a");
    const values = s.y.map((v) => (v === null ? "" : show(v, unit)));
    const error = s.error && s.error.some((e) => e !== null);
    const words = values.map((v, k) => {
      if (v === "") return "";
      const more = error && s.error[k] !== null ? ` ± ${s.error[k].toFixed(2)}` : "";
      const head = places[k] ? `${places[k]}<br>` : "";
      return `${head}${chart.unit === "mark" ? "" : `<b>${s.name}: ${v}${more}</b>`}`;
    });
    const whiskers = error ? { type: "data", array: s.error, color: css("ink"), thickness: 1.3, width: 4 } : undefined;
    const faint = state.task && s.tag && s.tag !== state.task;
    const base = { name: s.name, text: words, hovertemplate: "%{text}<extra></extra>", opacity: faint ? 0.15 : 1,
      hoverlabel: { bgcolor: css("paper"), bordercolor: colour, font: { color: css("ink"), size: 13 } } };
    if (s.kind === "bars") {
      const pattern = chart.series.filter((one) => one.kind === "bars").length > 1 ? PATTERNS[s.role] || "" : "";
      const flat = { ...base, type: "bar", orientation: chart.horizontal ? "h" : "v",
        marker: { color: colour, line: { color: css("paper"), width: 1 }, pattern: { shape: pattern, fillmode: "overlay", fgcolor: css("paper"), size: 7, solidity: 0.22 } } };
      flat[chart.horizontal ? "x" : "y"] = s.y;
      flat[chart.horizontal ? "y" : "x"] = x;
      flat.textposition = "none";
      if (!chart.horizontal) flat.width = Math.min(0.8, 0.16 * chart.x.categories.length);
      if (!chart.stacked) {
        flat.texttemplate = "%{customdata}";
        const narrow = !chart.horizontal && width / x.length < 90;
        flat.customdata = s.y.map((v, k) => (narrow && v !== null ? v.toFixed(width / x.length < 50 ? 0 : 1) : values[k].replace(" images", "")));
        flat.textposition = chart.horizontal ? "auto" : "inside";
        flat.insidetextanchor = chart.horizontal ? "end" : "start";
        flat.insidetextfont = { color: inkOn(rgb(colour)) };
        flat.outsidetextfont = { color: css("ink") };
        flat.textangle = 0;
      }
      if (whiskers) flat[chart.horizontal ? "error_x" : "error_y"] = whiskers;
      return flat;
    }
    const open = s.kind === "points" && chart.unit !== "mark";
    const crowd = chart.series.reduce((sum, one) => sum + one.y.length, 0) > MAX_MARKERS;
    const hasMarks = s.kind === "points" || (s.marks && !crowd);
    return { ...base, type: "scatter", x, y: s.y, error_y: whiskers,
      mode: s.kind === "points" ? "markers" : hasMarks ? "lines+markers" : "lines",
      line: { color: colour, width: s.tag && s.tag === state.task ? 3.5 : s.width || 1.5, dash: s.kind === "line" || !s.kind ? dash(s.role) : "solid" },
      marker: { color: open ? css("paper") : colour, symbol: symbol(s.role), size: open ? 10 : chart.unit === "mark" ? 7 : s.error ? 8 : 4,
        opacity: chart.unit === "mark" ? 0.75 : 1, line: { color: colour, width: open ? 2 : 0 } } };
  }

  function heatTraces(chart, width) {
    const { columns, rows, values, kind, high, labels: [row, column] } = chart.heatmap;
    const low = css("low"), top = css("high");
    const unit = kind === "count" ? "images" : "%";
    const text = values.map((line, r) => line.map((v, c) => (v === null ? "" :
      `${row} ${rows[r]}, ${column} ${columns[c]}<br><b>${show(v, unit)}</b>`)));
    const traces = [{ type: "heatmap", x: columns.map((_, k) => k), y: rows.map((_, k) => k), z: values, zmin: 0, zmax: high,
      colorscale: [[0, low], [1, top]], xgap: columns.length > 60 ? 0 : 1, ygap: columns.length > 60 ? 0 : 1, text,
      hovertemplate: "%{text}<extra></extra>", hoverongaps: false,
      hoverlabel: { bgcolor: css("paper"), bordercolor: css("edge"), font: { color: css("ink"), size: 13 } },
      colorbar: { thickness: 10, outlinewidth: 0, len: 0.9, tickfont: { color: css("soft") }, title: { text: unit, font: { color: css("soft"), size: 12 } } } }];
    const room = (width - 130) / columns.length;
    if (columns.length * rows.length <= 625 && room >= 21) { // numbers in black or white, whichever has more contrast
      const marks = { x: [], y: [], text: [], color: [] };
      values.forEach((line, r) => line.forEach((v, c) => {
        if (v === null || (kind === "count" && v === 0)) return;
        marks.x.push(c); marks.y.push(r);
        marks.text.push(kind === "count" ? String(v) : v.toFixed(room < 38 ? 0 : 1));
        marks.color.push(inkOn(mix(low, top, Math.min(1, v / high))));
      }));
      traces.push({ type: "scatter", mode: "text", x: marks.x, y: marks.y, text: marks.text, hoverinfo: "skip", showlegend: false,
        textfont: { size: Math.max(9, Math.min(13, room / 2.9)), color: marks.color }, cliponaxis: false });
    }
    return traces;
  }

  function axis(spec, width, extra) {
    const out = { title: { text: spec.title || "", standoff: 8, font: { color: css("soft"), size: 13 } }, automargin: true,
      gridcolor: css("grid"), zeroline: false, linecolor: css("edge"), tickcolor: css("edge"), tickfont: { color: css("soft"), size: 12 }, fixedrange: true, ...extra };
    if (spec.log) out.type = "log";
    if (spec.ticks) { out.tickmode = "array"; out.tickvals = spec.ticks.map((t) => t[0]); out.ticktext = spec.ticks.map((t) => short(t[1], 16)); }
    if (spec.categories) { out.type = "category"; out.categoryorder = "array"; out.categoryarray = spec.categories;
      out.tickmode = "array"; out.tickvals = spec.categories; out.ticktext = spec.categories.map((t) => short(t, width < 500 ? 18 : 34)); }
    if (spec.low !== undefined || spec.high !== undefined) {
      const ends = [spec.low === undefined ? null : spec.low, spec.high === undefined ? null : spec.high];
      out.range = spec.log ? ends.map((v) => (v === null ? null : Math.log10(v))) : ends;
      if (ends.includes(null)) { delete out.range; out.rangemode = spec.low === 0 ? "tozero" : "normal"; }
    }
    return out;
  }

  function layout(chart, width) {
    const heat = chart.heatmap, many = (chart.series || []).length > 12;
    const out = { font: { family: getComputedStyle(document.body).fontFamily, color: css("ink"), size: 12 }, paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)", margin: { l: 10, r: 10, t: 10, b: 10, pad: 2 }, hovermode: "closest", dragmode: false, showlegend: false,
      legend: { orientation: "h", y: 1.07, yanchor: "bottom", x: 0, traceorder: "normal", font: { color: css("ink"), size: 12 } }, shapes: [], annotations: [] };
    if (heat) {
      const names = (list) => ({ tickmode: "array", tickvals: list.map((_, k) => k).filter((k) => k % Math.ceil(list.length / 25) === 0),
        ticktext: list.map((t) => short(t, 14)).filter((_, k) => k % Math.ceil(list.length / 25) === 0), showgrid: false });
      const long = Math.max(...heat.columns.map((t) => t.length)) * heat.columns.length * 7 > width * 0.7;
      out.xaxis = axis(chart.x, width, { ...names(heat.columns), side: "bottom", tickangle: long ? -60 : 0, range: [-0.5, heat.columns.length - 0.5] });
      out.yaxis = axis(chart.y, width, { ...names(heat.rows), range: [heat.rows.length - 0.5, -0.5] });
      const cell = Math.min(46, (width - 150) / heat.columns.length);
      out.height = Math.max(180, Math.min(720, cell * 0.8 * heat.rows.length + 110));
      return out;
    }
    out.xaxis = axis(chart.x, width, chart.bands ? { showgrid: false } : {});
    out.yaxis = axis(chart.y, width, chart.horizontal ? { showgrid: false } : {});
    out.showlegend = chart.series.length > 1 && !many;
    out.height = chart.horizontal ? 110 + 30 * chart.y.categories.length : 360;
    if (chart.stacked) out.barmode = "stack";
    if (!chart.horizontal && chart.x.categories) out.xaxis.showgrid = false;
    for (const band of chart.bands || []) {
      out.shapes.push({ type: "rect", layer: "below", xref: "x", yref: "paper", x0: band.low, x1: band.high, y0: 0, y1: 1, line: { width: 0 }, fillcolor: css(`band-${band.role}`) });
    }
    const bands = chart.bands || [];
    if (bands.length && (width - 70) / bands.length > 9) { // a letter in every band, so that stages are distinct without color
      for (const band of bands) {
        out.annotations.push({ xref: "x", yref: "paper", x: (band.low + band.high) / 2, y: 1, yanchor: "bottom", showarrow: false, text: band.role[0].toUpperCase(), font: { size: 11, color: css("ink") } });
      }
    }
    for (const x of chart.rules || []) {
      out.shapes.push({ type: "line", xref: "x", yref: "paper", x0: x, x1: x, y0: 0, y1: 1, line: { color: css("soft"), width: 1, dash: "dot" } });
    }
    (chart.levels || []).forEach(([y, name], k) => { // labels alternate between left and right so that close levels do not overlap
      out.shapes.push({ type: "line", xref: "paper", yref: "y", x0: 0, x1: 1, y0: y, y1: y, line: { color: css("c"), width: 2, dash: "dash" } });
      out.annotations.push({ xref: "paper", yref: "y", x: k % 2 ? 0 : 1, xanchor: k % 2 ? "left" : "right", y, yanchor: "bottom", showarrow: false, text: `${name}: ${y.toFixed(2)} %`, font: { color: css("ink"), size: 12 } });
    });
    return out;
  }

  function plot(host, chart, name) {
    const width = host.clientWidth || 600;
    const traces = chart.heatmap ? heatTraces(chart, width) : chart.series.map((s) => trace(chart, s, width));
    host.setAttribute("role", "img");
    host.setAttribute("aria-label", `${name}. ${chart.title}. The numbers are in the table below.`);
    return Plotly.react(host, traces, layout(chart, width), { displayModeBar: false, responsive: true, displaylogo: false });
  }

  // ------------------------------------------------------------------ the numbers of a chart as a table
  const MAX_TABLE_ROWS = 400;
  function numbers(chart) {
    const table = element("table"), head = table.createTHead().insertRow(), body = table.createTBody();
    const line = (cells) => { const row = body.insertRow(); cells.forEach((c) => { row.insertCell().textContent = c; }); };
    const heads = (cells) => cells.forEach((c) => { const th = element("th"); th.textContent = c; head.append(th); });
    if (chart.heatmap) {
      const { columns, rows, values, labels: [row, column] } = chart.heatmap;
      heads([`${row} \\ ${column}`, ...columns.slice(0, 60)]);
      rows.slice(0, 60).forEach((name, k) => line([name, ...values[k].slice(0, 60).map((v) => (v === null ? "" : String(v)))]));
    } else {
      heads(["series", "position", "value", "±"]);
      let left = MAX_TABLE_ROWS;
      for (const s of chart.series) {
        const x = at(chart, s), places = says(chart, s);
        s.y.forEach((v, k) => { if (v !== null && left-- > 0) line([s.name, places[k] || x[k], v, s.error && s.error[k] !== null ? s.error[k] : ""]); });
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

  // ------------------------------------------------------------------ building the page
  function element(tag, cls) { const made = document.createElement(tag); if (cls) made.className = cls; return made; }
  const LABELS = { run: "Run", group: "Runs", measure: "Measure", task: "Task" };

  function selector(name, options, ids) {
    const label = element("label"), select = element("select");
    label.append(`${LABELS[name]} `, select);
    select.dataset.name = name;
    select.id = `choose-${ids}-${name}`;
    for (const [value, text] of options) select.add(new Option(text, value));
    if (state[name] === undefined) state[name] = options[0][0];
    select.value = options.some(([value]) => value === state[name]) ? state[name] : options[0][0];
    select.addEventListener("change", () => { state[name] = select.value; refresh(name, select.value); });
    return label;
  }

  function keyOf(view, host) {
    return view.key.replace(/\{(\w+)\}/g, (_, name) => {
      const own = host.querySelector(`select[data-name=${name}]`);
      return own ? own.value : view.selectors[name][0][0]; // a selector of one choice is not shown
    });
  }

  function build(view, panel, ids) {
    const figure = element("figure"), title = element("h2"), caption = element("figcaption"), controls = element("div", "controls");
    title.textContent = view.title;
    caption.textContent = view.caption;
    for (const [name, options] of Object.entries(view.selectors)) if (name !== "*" && options.length > 1) controls.append(selector(name, options, ids));
    const key = element("div", "key"), body = element("div", view.kind === "grid" ? "grid" : view.kind === "gallery" ? "gallery" : "plot");
    figure.append(title, caption, controls, key, body);
    const details = element("details"), summary = element("summary"), scroll = element("div", "scroll");
    summary.textContent = "The numbers";
    scroll.tabIndex = 0;
    details.append(summary, scroll);
    const present = () => charts[keyOf(view, figure)];
    details.addEventListener("toggle", () => { if (details.open && present()) scroll.replaceChildren(numbers(present())); });
    const draw = () => {
      if (view.kind === "grid") {
        if (!body.children.length) {
          for (const [, name] of view.selectors["*"]) { const box = element("div"), head = element("h3"), place = element("div", "plot"); head.textContent = name; box.append(head, place); body.append(box); }
        }
        view.selectors["*"].forEach(([value, name], k) => plot(body.children[k].lastChild, charts[keyOf(view, figure).replace("*", value)], name));
        return;
      }
      const chart = present();
      figure.dataset.key = keyOf(view, figure);
      if (!chart) { if (body.data) Plotly.purge(body); body.textContent = view.empty || "This run did not record it."; key.replaceChildren(); return; }
      if (view.kind === "gallery") { body.classList.toggle("wide", view.key.startsWith("wrong")); gallery(body, chart); return; }
      if (!body.data) body.textContent = "";
      key.replaceChildren(...Object.entries(chart.names || {}).map(([role, name]) => {
        const one = element("span"); one.textContent = `${role[0].toUpperCase()} ${name}`; one.style.setProperty("--swatch", css(`band-${role}`)); return one;
      }));
      plot(body, chart, view.title);
      if (details.open) scroll.replaceChildren(numbers(chart));
    };
    if (view.kind === "chart") figure.append(details);
    panel.append(figure);
    drawn.push({ view, panel: panel.closest("[role=tabpanel]"), figure, draw, seen: false });
  }

  function refresh(name, value) {
    for (const one of drawn) {
      const select = one.figure.querySelector(`select[data-name=${name}]`);
      if (!select) continue;
      if ([...select.options].some((option) => option.value === value)) select.value = value;
      one.seen = false;
    }
    look();
  }
  function look() { for (const one of drawn) if (!one.panel.hidden && !one.seen) { one.seen = true; one.draw(); } }

  // ------------------------------------------------------------------ tabs, by mouse and keyboard
  const main = document.querySelector("main"), buttons = [...document.querySelectorAll("[role=tab]")];
  tabs.forEach((tab, k) => {
    const panel = element("section");
    panel.id = `panel-${k + 1}`;
    panel.setAttribute("role", "tabpanel");
    panel.setAttribute("aria-labelledby", `tab-${k + 1}`);
    panel.tabIndex = 0;
    panel.hidden = true;
    main.append(panel);
    tab.views.forEach((view, v) => build(view, panel, `${k}-${v}`));
  });
  lead.forEach((view, v) => build(view, document.getElementById("lead"), `lead-${v}`));
  const panels = [...document.querySelectorAll("[role=tabpanel]")];
  function choose(k, focus) {
    buttons.forEach((button, n) => { button.setAttribute("aria-selected", String(n === k)); button.tabIndex = n === k ? 0 : -1; panels[n].hidden = n !== k; });
    if (focus) buttons[k].focus();
    look();
  }
  buttons.forEach((button, k) => {
    button.addEventListener("click", () => choose(k, false));
    button.addEventListener("keydown", (event) => {
      const step = { ArrowRight: k + 1, ArrowLeft: k - 1, Home: 0, End: buttons.length - 1 }[event.key];
      if (step === undefined) return;
      event.preventDefault();
      choose((step + buttons.length) % buttons.length, true);
    });
  });

  // ------------------------------------------------------------------ light and dark theme
  const dark = matchMedia("(prefers-color-scheme: dark)"), toggle = document.getElementById("theme");
  function theme(name) {
    root.dataset.theme = name;
    root.style.colorScheme = name;
    toggle.textContent = name === "dark" ? "Light" : "Dark";
    drawn.forEach((one) => { one.seen = false; });
    look();
  }
  toggle.addEventListener("click", () => theme(root.dataset.theme === "dark" ? "light" : "dark"));
  dark.addEventListener("change", () => theme(dark.matches ? "dark" : "light"));
  let timer = 0, width = innerWidth;
  addEventListener("resize", () => { // numbers in cells and letters in bands depend on the width
    clearTimeout(timer);
    timer = setTimeout(() => { if (innerWidth !== width) { width = innerWidth; drawn.forEach((one) => { one.seen = false; }); look(); } }, 200);
  });
  theme(dark.matches ? "dark" : "light");
  root.dataset.ready = "true";
})();
