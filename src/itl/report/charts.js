"use strict";
// Charts, as the page's data describes them, in the form that the charting library expects.
const Charts = (() => {
  const root = document.documentElement;
  // Colors, dashes, symbols and patterns: color is never the only cue.
  const css = (name) => getComputedStyle(root).getPropertyValue(`--${name}`).trim();
  const ROLES = ["a", "b", "c", "d", "e", "f", "g", "h"];
  const DASHES = ["solid", "dash", "dot", "dashdot", "longdash", "longdashdot", "solid", "dash"];
  const SYMBOLS = ["circle", "square", "diamond", "triangle-up", "cross", "x", "star", "hexagon"];
  const PATTERNS = { specialist: "", tangent: "/", projection: "x", a: "", b: "\\", c: "|", d: "+", e: "/", f: "x", g: ".", h: "-" };
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

  const at = (chart, s) => s.x || chart.xs.slice(s.start || 0, (s.start || 0) + s.y.length);
  const says = (chart, s) => s.hover || (chart.descriptions || []).slice(s.start || 0, (s.start || 0) + s.y.length);
  const short = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);
  const show = (value, unit) => (["%", "s", "points"].includes(unit) ? value.toFixed(2) : String(value)) + (unit ? ` ${unit}` : "");
  const hoverlabel = (colour) => ({ bgcolor: css("paper"), bordercolor: colour, font: { color: css("ink"), size: 13 } });

  const MAX_MARKERS = 4000; // lines with more points than this have no markers
  const NARROW = 560; // pixels; a narrower chart has a legend instead of labels at its lines
  const LABEL_HEIGHT = 15; // pixels between the labels of two lines
  const isLine = (s) => !s.kind || s.kind === "line";
  const hasLabels = (chart, width) => chart.line_labels && width >= NARROW && chart.series.length > 1;

  function hoverTexts(chart, s, unit) {
    const places = says(chart, s);
    return s.y.map((v, k) => {
      if (v === null) return "";
      const spread = s.error && s.error[k] !== null && s.error[k] !== undefined && !chart.stacked;
      const more = spread ? ` ± ${s.error[k].toFixed(2)}${s.interval === "ci95" ? " (95 % interval)" : ""}` : "";
      const head = places[k] ? `${places[k]}<br>` : "";
      return `${head}${chart.unit === "mark" ? "" : `<b>${s.name}: ${show(v, unit)}${more}</b>`}`;
    });
  }

  function barTrace(chart, s, base, colour, width, unit) {
    const x = at(chart, s);
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
      flat.customdata = s.y.map((v) => (v === null ? "" : narrow ? v.toFixed(width / x.length < 50 ? 0 : 1) : show(v, unit).replace(" images", "")));
      flat.textposition = chart.horizontal ? "auto" : "inside";
      flat.insidetextanchor = chart.horizontal ? "end" : "start";
      flat.insidetextfont = { color: inkOn(rgb(colour)) };
      flat.outsidetextfont = { color: css("ink") };
      flat.textangle = 0;
    }
    return flat;
  }

  function traces(chart, s, width, task, shift) {
    const unit = chart.unit === undefined ? "%" : chart.unit;
    const colour = css(s.kind === "bars" && !chart.stacked ? "bar" : s.role || "a");
    const error = s.error && s.error.some((e) => e !== null) && !chart.stacked && !s.band;
    const whiskers = error ? { type: "data", array: s.error.map((e) => e || 0), color: s.kind === "bars" ? css("ink") : colour, thickness: 1.3, width: 4 } : undefined;
    const faint = task && s.tag && s.tag !== task;
    const base = { name: s.name, text: hoverTexts(chart, s, unit), hovertemplate: "%{text}<extra></extra>", opacity: faint ? 0.15 : 1, hoverlabel: hoverlabel(colour) };
    if (s.kind === "bars") {
      const flat = barTrace(chart, s, base, colour, width, unit);
      if (whiskers) flat[chart.horizontal ? "error_x" : "error_y"] = whiskers;
      return [flat];
    }
    const open = s.kind === "points" && chart.unit !== "mark" && s.interval !== "ci95";
    const crowd = chart.series.reduce((sum, one) => sum + one.y.length, 0) > MAX_MARKERS;
    const hasMarks = s.kind === "points" || (s.marks && !crowd);
    const x = chart.x.log ? at(chart, s).map((value) => value * shift) : at(chart, s);
    const places = chart.horizontal ? { x: s.y, y: x, error_x: whiskers } : { x, y: s.y, error_y: whiskers };
    const line = { ...base, type: "scatter", ...places,
      mode: s.kind === "points" ? "markers" : hasMarks ? "lines+markers" : "lines",
      line: { color: colour, width: s.tag && s.tag === task ? 3.5 : s.width || 1.5, dash: isLine(s) ? dash(s.role) : "solid" },
      marker: { color: open ? css("paper") : colour, symbol: symbol(s.role), size: open ? 10 : chart.unit === "mark" ? 7 : s.error ? 8 : 4,
        opacity: chart.unit === "mark" ? 0.75 : 1, line: { color: colour, width: open ? 2 : 0 } } };
    return s.band && s.error ? [line, bandTrace(s, x, colour)] : [line];
  }

  function bandTrace(s, x, colour) { // ± error around a line
    const known = s.y.map((_, k) => k).filter((k) => s.y[k] !== null && s.error[k] !== null);
    const up = known.map((k) => s.y[k] + s.error[k]), down = known.map((k) => s.y[k] - s.error[k]);
    const places = known.map((k) => x[k]);
    return { type: "scatter", mode: "lines", x: [...places, ...[...places].reverse()], y: [...up, ...down.reverse()], fill: "toself",
      fillcolor: `rgba(${rgb(colour).join(",")},0.16)`, line: { width: 0 }, hoverinfo: "skip", showlegend: false, name: `${s.name}, band` };
  }

  function heatTraces(chart, width) {
    const { columns, rows, values, kind, high, labels: [row, column] } = chart.heatmap;
    const low = css("low"), top = css("high");
    const unit = kind === "count" ? "images" : "%";
    const text = values.map((line, r) => line.map((v, c) => (v === null ? "" :
      `${row} ${rows[r]}, ${column} ${columns[c]}<br><b>${show(v, unit)}</b>`)));
    const found = [{ type: "heatmap", x: columns.map((_, k) => k), y: rows.map((_, k) => k), z: values, zmin: 0, zmax: high,
      colorscale: [[0, low], [1, top]], xgap: columns.length > 60 ? 0 : 1, ygap: columns.length > 60 ? 0 : 1, text,
      hovertemplate: "%{text}<extra></extra>", hoverongaps: false, hoverlabel: hoverlabel(css("edge")),
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
      found.push({ type: "scatter", mode: "text", x: marks.x, y: marks.y, text: marks.text, hoverinfo: "skip", showlegend: false,
        textfont: { size: Math.max(9, Math.min(13, room / 2.9)), color: marks.color }, cliponaxis: false });
    }
    return found;
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

  function heatLayout(out, chart, width) {
    const heat = chart.heatmap;
    const names = (list) => ({ tickmode: "array", tickvals: list.map((_, k) => k).filter((k) => k % Math.ceil(list.length / 25) === 0),
      ticktext: list.map((t) => short(t, 14)).filter((_, k) => k % Math.ceil(list.length / 25) === 0), showgrid: false });
    const long = Math.max(...heat.columns.map((t) => t.length)) * heat.columns.length * 7 > width * 0.7;
    out.xaxis = axis(chart.x, width, { ...names(heat.columns), side: "bottom", tickangle: long ? -60 : 0, range: [-0.5, heat.columns.length - 0.5] });
    out.yaxis = axis(chart.y, width, { ...names(heat.rows), range: [heat.rows.length - 0.5, -0.5] });
    const cell = Math.min(46, (width - 150) / heat.columns.length);
    out.height = Math.max(180, Math.min(720, cell * 0.8 * heat.rows.length + 110));
    return out;
  }

  function lineLabels(out, chart) { // the name of each line at its end, moved so that names do not overlap
    const lines = chart.series.filter((s) => isLine(s)).map((s) => ({ s, y: [...s.y].reverse().find((v) => v !== null) })).filter(({ y }) => y !== undefined);
    lines.sort((a, b) => a.y - b.y);
    const { low = 0, high = 100 } = chart.y;
    out.height = Math.max(out.height, 90 + LABEL_HEIGHT * lines.length);
    const gap = ((high - low) * LABEL_HEIGHT) / (out.height - 70);
    lines.forEach((one, k) => { one.at = Math.max(one.y, k ? lines[k - 1].at + gap : low); });
    for (let k = lines.length - 1, roof = high; k >= 0; k--) { lines[k].at = Math.min(lines[k].at, roof); roof = lines[k].at - gap; }
    for (const { s, at: y } of lines) {
      out.annotations.push({ xref: "paper", yref: "y", x: 1.01, xanchor: "left", y, yanchor: "middle", showarrow: false, text: short(s.name, 30), font: { size: 12, color: css(s.role) } });
    }
    out.margin.r = 16 + 7 * Math.min(30, Math.max(...lines.map(({ s }) => s.name.length)));
  }

  function layout(chart, width) {
    const out = { font: { family: getComputedStyle(document.body).fontFamily, color: css("ink"), size: 12 }, paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)", margin: { l: 10, r: 10, t: 10, b: 10, pad: 2 }, hovermode: "closest", dragmode: false, showlegend: false,
      legend: { orientation: "h", y: 1.07, yanchor: "bottom", x: 0, traceorder: "normal", font: { color: css("ink"), size: 12 } }, shapes: [], annotations: [] };
    if (chart.heatmap) return heatLayout(out, chart, width);
    out.xaxis = axis(chart.x, width, chart.bands ? { showgrid: false } : {});
    out.yaxis = axis(chart.y, width, chart.horizontal ? { showgrid: false } : {});
    out.height = chart.horizontal ? 110 + 30 * chart.y.categories.length : 360;
    const labelled = hasLabels(chart, width);
    const named = chart.series.filter((s) => !labelled || !isLine(s));
    out.showlegend = chart.series.length > 1 && !labelled && (chart.line_labels || named.length <= 12);
    if (out.showlegend && named.length > 6) out.height += 18 * Math.ceil(named.length / Math.max(1, Math.floor(width / 160)));
    if (labelled) lineLabels(out, chart);
    if (chart.stacked) out.barmode = "stack";
    if (!chart.horizontal && chart.x.categories) out.xaxis.showgrid = false;
    const bands = chart.bands || [];
    for (const band of bands) {
      out.shapes.push({ type: "rect", layer: "below", xref: "x", yref: "paper", x0: band.low, x1: band.high, y0: 0, y1: 1, line: { width: 0 }, fillcolor: css(`band-${band.role}`) });
    }
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

  function allTraces(chart, width, task) {
    if (chart.heatmap) return heatTraces(chart, width);
    const count = chart.series.filter((s) => isLine(s)).length, step = Math.min(0.03, 0.2 / Math.max(1, count));
    let number = -1;
    const found = chart.series.map((s) => {
      if (isLine(s)) number += 1;
      return traces(chart, s, width, task, 10 ** ((Math.max(0, number) - (count - 1) / 2) * step));
    });
    return [...found.map((own) => own[0]), ...found.flatMap((own) => own.slice(1))]; // bands last: indices stay those of the series
  }

  function plot(host, chart, name, task) {
    const width = host.clientWidth || 600;
    host.setAttribute("role", "img");
    host.setAttribute("aria-label", `${name}. ${chart.title}. The numbers are in the table below.`);
    return Plotly.react(host, allTraces(chart, width, task), layout(chart, width), { displayModeBar: false, responsive: true, displaylogo: false });
  }

  function save(host, format, filename) {
    const { width, height } = host.getBoundingClientRect();
    const figure = { data: host.data, layout: { ...host.layout, paper_bgcolor: css("paper"), width, height } };
    return Plotly.downloadImage(figure, { format, filename, width, height, scale: format === "png" ? 3 : 1 });
  }

  return { css, at, says, plot, save };
})();
