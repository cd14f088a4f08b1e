"use strict";
// What the reader has selected: methods, memory sizes and seeds. Filters charts, selectors and tables, and computes
// means over the selected seeds.
function makeSelection({ groups = {}, runs = {}, methods = [], t = [] }) {
  const members = [...Object.values(groups), ...Object.values(runs)];
  const distinct = (values) => [...new Set(values)];
  const numeric = (a, b) => Number(a) - Number(b);
  const all = {
    method: distinct(members.map((one) => one.method)),
    size: distinct(members.map((one) => one.size)).sort(numeric),
    seed: distinct(members.flatMap((one) => one.seeds || [one.seed])).sort(numeric),
  };
  const initial = { ...all, method: all.method.filter((name) => !methods.length || methods.includes(name) || !Object.values(groups).some((g) => g.method === name)) };
  const chosen = Object.fromEntries(Object.entries(initial).map(([name, values]) => [name, new Set(values)]));
  const isDefault = (name) => chosen[name].size === initial[name].length && initial[name].every((value) => chosen[name].has(value));
  const allSeeds = () => chosen.seed.size === all.seed.length;

  const matches = (one) => chosen.method.has(one.method) && chosen.size.has(one.size) && (one.seeds || [one.seed]).some((seed) => chosen.seed.has(seed));
  const allows = (key) => !groups[key] || matches(groups[key]);
  const mean = (values) => values.reduce((sum, v) => sum + v, 0) / values.length;

  function statistics(samples, interval) { // mean, and sample standard deviation or half of the 95 % interval
    const values = Object.entries(samples).filter(([seed]) => chosen.seed.has(seed)).map(([, value]) => value);
    if (!values.length) return { mean: null, error: null, count: 0 };
    const middle = mean(values), count = values.length;
    const std = count > 1 ? Math.sqrt(values.reduce((sum, v) => sum + (v - middle) ** 2, 0) / (count - 1)) : null;
    return { mean: middle, count, error: std === null ? null : interval === "ci95" ? (t[count] * std) / Math.sqrt(count) : std };
  }

  function offers(name, value) { // whether a selector offers a choice
    if (runs[value]) return matches(runs[value]);
    if (name === "set") return Object.entries(groups).some(([key, group]) => group.set === value && allows(key));
    if (!groups[value] || !allows(value)) return !groups[value];
    return name !== "run" || groups[value].seeds.every((seed) => chosen.seed.has(seed)); // a mean that Python computed
  }

  function selectSeries(s) {
    if (!s.groups) return s;
    const found = s.samples ? s.samples.map((samples) => statistics(samples, s.interval)) : null;
    const kept = s.groups.map((_, k) => k).filter((k) => allows(s.groups[k]) && (!found || found[k].count));
    if (!kept.length) return null;
    const out = { ...s };
    for (const name of ["x", "y", "error", "hover", "groups", "samples"]) if (s[name]) out[name] = kept.map((k) => s[name][k]);
    if (found && !allSeeds()) {
      out.y = kept.map((k) => found[k].mean);
      out.error = kept.map((k) => found[k].error);
    }
    return out;
  }

  function apply(chart) { // the part of a chart that is selected; null if nothing is
    const samples = chart.heatmap && chart.heatmap.samples;
    if (samples && !allSeeds()) {
      const matrices = Object.entries(samples).filter(([seed]) => chosen.seed.has(seed)).map(([, matrix]) => matrix);
      if (!matrices.length) return null;
      const values = matrices[0].map((row, r) => row.map((v, c) => (v === null ? null : mean(matrices.map((m) => m[r][c])))));
      return { ...chart, heatmap: { ...chart.heatmap, values } };
    }
    if (!chart.series) return chart;
    const series = chart.series.map(selectSeries).filter((s) => s !== null);
    if (!series.length) return null;
    const out = { ...chart, series };
    for (const axis of ["x", "y"]) {
      if (!chart[axis].categories || !series.some((s) => s.groups)) continue;
      const used = new Set(series.flatMap((s) => s.x));
      out[axis] = { ...chart[axis], categories: chart[axis].categories.filter((name) => used.has(name)) };
    }
    return out;
  }

  return { all, chosen, groups, isDefault, allSeeds, allows, offers, apply, statistics };
}
