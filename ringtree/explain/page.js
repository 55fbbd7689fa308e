// The drawings and sliders of the page. The closed forms are those of ringtree.theory.model.closed_form, line by line;
// tests compare the two at many points.
"use strict";
(() => {
  const numbers = JSON.parse(document.getElementById("numbers").textContent);
  const START = 0, ENTER = 1, HOP_IN = 2, HOP_OUT = 3, BANDWIDTH_IN = 4, BANDWIDTH_OUT = 5, PIPELINING = 6;

  // ---- the model ----------------------------------------------------------------------------------------------------

  // Hops one after the other round the ring, how many of them between nodes, and bytes that a rank sends for each byte.
  function ring(fit, p, nodes) {
    if (fit.rooted) return [p - 1, nodes - 1, Math.min(p - 1, 1)];
    return [fit.laps * (p - 1), fit.laps * nodes, fit.laps * (p - 1) / p];
  }

  // Seconds of NCCL's ring or tree under one protocol (seven numbers): latency along the path, and bytes over bandwidth.
  function closedForm(fit, algorithm, protocol, n, p, nodes) {
    const several = nodes > 1;
    const start = protocol[START] + (several ? protocol[ENTER] : 0);
    const bandwidth = several ? protocol[BANDWIDTH_OUT] : protocol[BANDWIDTH_IN];
    if (algorithm === "ring") {
      const [steps, lap, share] = ring(fit, p, nodes);
      const between = several ? Math.min(lap, steps) : 0;
      return start + (steps - between) * protocol[HOP_IN] + between * protocol[HOP_OUT] + n * share / bandwidth;
    }
    const inside = 2 * (p / nodes - 1), between = 2 * Math.log2(nodes);
    const path = inside * protocol[HOP_IN] + between * protocol[HOP_OUT];
    const moved = 2 * n / bandwidth;
    const inOnePiece = path + (inside + between) * n / bandwidth;
    const inChunks = path + moved + 2 * protocol[PIPELINING] * Math.sqrt(path * moved / 2);
    return start + Math.min(inOnePiece, inChunks);
  }

  const algorithms = (fit, forced) => forced ? [forced] : fit.tree ? ["ring", "tree"] : ["ring"];

  // The fastest of all protocols, ring and tree: seconds, and which.
  function fastest(fit, protocols, n, p, nodes, forced) {
    let best = {seconds: Infinity};
    protocols.forEach((protocol, index) => {
      for (const algorithm of algorithms(fit, forced)) {
        const seconds = closedForm(fit, algorithm, protocol, n, p, nodes);
        if (seconds < best.seconds) best = {seconds, algorithm, protocol: index};
      }
    });
    return best;
  }

  const time = (fit, n, p, nodes, forced) => fastest(fit, fit.protocols, n, p, nodes, forced).seconds;

  // As numpy's quantile: linear between the two nearest.
  function quantile(sorted, part) {
    const at = part * (sorted.length - 1), low = Math.floor(at), high = Math.min(low + 1, sorted.length - 1);
    return sorted[low] + (at - low) * (sorted[high] - sorted[low]);
  }

  // Between which seconds nine of ten measurements are expected: each machine that the fit holds possible, times its factor.
  function interval(fit, n, p, nodes, forced) {
    fit.possible ??= fit.draws.map(draw => draw.map(protocol => protocol.map(Math.exp)));
    const times = fit.possible.map((protocols, i) => fastest(fit, protocols, n, p, nodes, forced).seconds * fit.longer[i]);
    times.sort((a, b) => a - b);
    return [quantile(times, .05), quantile(times, .95)];
  }

  // ---- words ----------------------------------------------------------------------------------------------------------

  function scaled(value, units) {
    let [name, size] = units[0];
    for (const [unit, unitSize] of units) if (Math.abs(value) >= .9995 * unitSize) [name, size] = [unit, unitSize];
    const number = value / size;
    const digits = number && Math.abs(number) < .95 ? String(Number(number.toPrecision(2)))
      : number.toFixed(Math.abs(number) >= 99.95 ? 0 : 1).replace(/\.0$/, "");
    return `${digits}\u00a0${name}`;
  }
  const seconds = value => scaled(value, [["ns", 1e-9], ["µs", 1e-6], ["ms", 1e-3], ["s", 1]]);
  const binary = value => scaled(value, [["B", 1], ["KiB", 2 ** 10], ["MiB", 2 ** 20], ["GiB", 2 ** 30]]);
  const bytes = value => scaled(value, [["B", 1], ["KB", 1e3], ["MB", 1e6], ["GB", 1e9], ["TB", 1e12]]);
  const count = (number, noun) => `${number} ${noun}${number === 1 ? "" : "s"}`;
  const percent = part => `${part > 0 ? "+" : ""}${Math.round(100 * part)}\u00a0%`;

  // ---- drawing --------------------------------------------------------------------------------------------------------

  const SVG = "http://www.w3.org/2000/svg";
  function add(parent, name, attributes, text) {
    const element = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    if (text !== undefined) element.textContent = text;
    parent.append(element);
    return element;
  }

  // An empty drawing with axes: sizes in powers of two along the bottom, `ticks` up the side; returns its two scales.
  function axes(svg, height, sizes, [low, high], ticks) {
    const width = Math.max(280, svg.parentElement.clientWidth), left = 64, right = 14, top = 12, bottom = 30;
    svg.replaceChildren();
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    const first = Math.log2(sizes[0]), last = Math.log2(sizes[sizes.length - 1]);
    const x = size => left + (width - left - right) * (Math.log2(size) - first) / (last - first || 1);
    const y = value => top + (height - top - bottom) * (1 - Math.log(value / low) / Math.log(high / low));
    const room = Math.max(2, Math.floor((width - left - right) / 78));
    const step = [1, 2, 5, 10].find(each => (last - first) / each <= room) ?? 20;
    for (let power = Math.ceil(first / step) * step; power <= last + 1e-9; power += step) {
      const at = x(2 ** power);
      add(svg, "line", {class: "grid", x1: at, x2: at, y1: top, y2: height - bottom});
      add(svg, "text", {x: at, y: height - bottom + 18, "text-anchor": at > width - 40 ? "end" : "middle"}, binary(2 ** power));
    }
    for (const [value, text] of ticks) {
      add(svg, "line", {class: value === 1 && low < 1 && high > 1 ? "axis" : "grid", x1: left, x2: width - right, y1: y(value), y2: y(value)});
      add(svg, "text", {x: left - 8, y: y(value) + 4, "text-anchor": "end"}, text);
    }
    return [x, y];
  }

  function decades(low, high) {
    const between = high / low < 300 ? [1, 3] : [1], ticks = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power++) {
      for (const part of between) {
        const value = part * 10 ** power;
        if (value >= low && value <= high) ticks.push([value, seconds(value)]);
      }
    }
    return ticks;
  }

  const path = points => points.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");

  // So many sizes, evenly on a logarithmic axis, for curves.
  function grid(sizes, points = 120) {
    const low = Math.log(sizes[0]), high = Math.log(sizes[sizes.length - 1]);
    return Array.from({length: points}, (_, i) => Math.exp(low + (high - low) * i / (points - 1)));
  }

  function drawCurves(svg, fit, sweep) {
    const along = grid(sweep.sizes), {ranks, nodes, algorithm} = sweep;
    const fitted = along.map(n => time(fit, n, ranks, nodes, algorithm));
    const band = along.map(n => interval(fit, n, ranks, nodes, algorithm));
    const all = [...sweep.times, ...sweep.nccl, ...band.flat(), ...fitted];
    const low = Math.min(...all) / 1.3, high = Math.max(...all) * 1.3;
    const [x, y] = axes(svg, 380, sweep.sizes, [low, high], decades(low, high));
    const edge = part => band.map((pair, i) => [x(along[i]), y(pair[part])]);
    add(svg, "path", {class: "band", d: `${path(edge(0))}${path(edge(1).reverse()).replace("M", "L")}Z`});
    add(svg, "path", {class: "fitted", d: path(fitted.map((t, i) => [x(along[i]), y(t)]))});
    if (sweep.nccl.length) add(svg, "path", {class: "nccl", d: path(sweep.nccl.map((t, i) => [x(sweep.sizes[i]), y(t)]))});
    sweep.times.forEach((t, i) => {
      const dot = add(svg, "circle", {class: "dot", cx: x(sweep.sizes[i]), cy: y(t), r: 3.5});
      add(dot, "title", {}, `${binary(sweep.sizes[i])}: ${seconds(t)}`);
      if (sweep.slow.includes(sweep.sizes[i])) add(svg, "circle", {class: "slow", cx: x(sweep.sizes[i]), cy: y(t), r: 8});
    });
    svg.setAttribute("aria-label", `${fit.collective} on ${sweep.world}: measured from ${seconds(sweep.times[0])} at `
      + `${binary(sweep.sizes[0])} to ${seconds(sweep.times[sweep.times.length - 1])} at ${binary(sweep.sizes[sweep.sizes.length - 1])}; `
      + `the fitted machine with its interval${sweep.nccl.length ? ", and NCCL's own model" : ""}.`
      + (sweep.slow.length ? ` Ringed, slower than a longer message: ${sweep.slow.map(binary).join(", ")}.` : ""));
  }

  function drawResiduals(svg, fit, sweep) {
    const fitted = sweep.sizes.map((n, i) => time(fit, n, sweep.ranks, sweep.nodes, sweep.algorithm) / sweep.times[i]);
    const nccl = sweep.nccl.map((t, i) => t / sweep.times[i]);
    const far = Math.max(1.3, ...[...fitted, ...nccl].map(ratio => Math.max(ratio, 1 / ratio))) * 1.1;
    const steps = [1.2, 1.5, 2, 3, 5, 10, 30, 100].filter(each => each < far);
    const shown = steps.length > 2 ? [steps[steps.length >> 1], steps[steps.length - 1]] : steps;
    const ticks = [...shown.map(each => [1 / each, `× ${Number((1 / each).toPrecision(2))}`]), [1, "× 1"],
      ...shown.map(each => [each, `× ${each}`])];
    const [x, y] = axes(svg, 200, sweep.sizes, [1 / far, far], ticks);
    nccl.forEach((ratio, i) => {
      const [cx, cy] = [x(sweep.sizes[i]), y(ratio)];
      add(svg, "path", {class: "nccl-mark", d: `M${cx - 4} ${cy - 4}L${cx + 4} ${cy + 4}M${cx - 4} ${cy + 4}L${cx + 4} ${cy - 4}`});
    });
    fitted.forEach((ratio, i) => add(svg, "circle", {class: "fitted", cx: x(sweep.sizes[i]), cy: y(ratio), r: 4}));
    const worst = fitted.reduce((a, b) => Math.abs(Math.log(b)) > Math.abs(Math.log(a)) ? b : a);
    svg.setAttribute("aria-label", `Misses of the fitted machine, the largest ${percent(worst - 1)}`
      + (nccl.length ? ", and as crosses those of NCCL's own model." : "."));
  }

  // ---- what the reader moves --------------------------------------------------------------------------------------------

  function comparison(element) {
    const fit = numbers.fits[+element.dataset.fit], choice = element.querySelector("select");
    const draw = () => {
      const sweep = fit.sweeps[+choice.value];
      element.querySelector(".legend .nccl").hidden = !sweep.nccl.length;
      element.querySelector(".legend .slow").hidden = !sweep.slow.length;
      drawCurves(element.querySelector(".curves"), fit, sweep);
      drawResiduals(element.querySelector(".residuals"), fit, sweep);
    };
    choice.addEventListener("change", draw);
    return draw;
  }

  // Steps of a slider: 1, 2, 3, 4, 6, 8, 12, 16, … up to the largest, and whatever was measured.
  function steps(largest, measured) {
    const values = new Set([1, ...measured]);
    for (let two = 2; two <= largest; two *= 2) for (const value of [two, 1.5 * two]) {
      if (Number.isInteger(value) && value <= largest) values.add(value);
    }
    return [...values].sort((a, b) => a - b);
  }

  function prediction(element) {
    const fit = numbers.fits[+element.dataset.fit], sweeps = fit.sweeps;
    const measured = {nodes: sweeps.map(each => each.nodes), cards: sweeps.map(each => each.ranks / each.nodes)};
    const last = sweeps.reduce((a, b) => b.nodes >= a.nodes ? b : a), most = Math.max(...measured.nodes);
    const smallest = Math.min(...sweeps.map(each => each.sizes[0])), largest = Math.max(...sweeps.map(each => each.sizes[each.sizes.length - 1]));
    const sizes = [];
    for (let power = Math.ceil(Math.log2(smallest)); power <= Math.max(Math.log2(largest), 30); power++) sizes.push(2 ** power);
    const values = {
      size: sizes,
      nodes: fit.network ? steps(4 * most, measured.nodes) : [1],
      cards: steps(Math.max(8, ...measured.cards), measured.cards),
    };
    const begin = {size: 2 ** 20, nodes: fit.network ? 2 * most : 1, cards: last.ranks / last.nodes};
    const inputs = Object.fromEntries(Object.keys(values).map(name => [name, element.querySelector(`[data-of=${name}]`)]));
    for (const [name, input] of Object.entries(inputs)) {
      const nearest = values[name].reduce((a, b) => Math.abs(Math.log(b / begin[name])) < Math.abs(Math.log(a / begin[name])) ? b : a);
      Object.assign(input, {min: 0, max: values[name].length - 1, disabled: values[name].length < 2});
      input.value = values[name].indexOf(nearest);
    }

    const draw = () => {
      const [size, nodes, cards] = ["size", "nodes", "cards"].map(name => values[name][+inputs[name].value]);
      const p = nodes * cards, texts = {size: binary(size), nodes: count(nodes, "node"), cards: count(cards, "card")};
      for (const [name, input] of Object.entries(inputs)) {
        input.setAttribute("aria-valuetext", texts[name]);
        input.parentElement.querySelector("output").textContent = texts[name];
      }
      const svg = element.querySelector(".forecast"), said = element.querySelector(".said"), warned = element.querySelector(".warned");
      if (p < 2) {
        said.textContent = "One rank has nobody to talk to: take more nodes or cards.";
        warned.textContent = "";
        svg.replaceChildren();
        return;
      }
      const best = fastest(fit, fit.protocols, size, p, nodes), [low, high] = interval(fit, size, p, nodes);
      const busbw = size * busFactor(fit, p) / best.seconds;
      said.textContent = `${fit.collective} of ${texts.size} on ${p} ranks: ${seconds(best.seconds)}, nine times in ten between `
        + `${seconds(low)} and ${seconds(high)}; busbw ${bytes(busbw)}/s, by a ${best.algorithm}, protocol ${best.protocol}.`;
      said.dataset.seconds = best.seconds;
      warned.textContent = warnings(fit, nodes, cards, measured, size, [smallest, largest]).join(" ");
      drawForecast(svg, fit, sizes, size, p, nodes);
    };
    for (const input of Object.values(inputs)) input.addEventListener("input", draw);
    return draw;
  }

  // busbw over algbw: 1, or a part (p − 1)/p, once or twice.
  function busFactor(fit, p) {
    return fit.factor[0] === fit.factor[1] ? fit.factor[0] : 2 * fit.factor[0] * (p - 1) / p;
  }

  function warnings(fit, nodes, cards, measured, size, [smallest, largest]) {
    const said = [], most = Math.max(...measured.nodes);
    if (nodes > most) said.push(`Beyond what was measured: ${nodes / most} times the nodes.`);
    if (nodes === 1 && !fit.inside) said.push("No log is of a single node: the links inside one are a guess.");
    if (!measured.cards.includes(cards)) said.push(`No log has ${count(cards, "card")} on a node: the model alone says this, and assumes as many network cards as before.`);
    if (size < smallest || size > largest) said.push(`No log has this size: they end at ${binary(largest)}.`);
    return said;
  }

  function drawForecast(svg, fit, sizes, size, p, nodes) {
    const along = grid(sizes), curve = along.map(n => time(fit, n, p, nodes)), band = along.map(n => interval(fit, n, p, nodes));
    const all = band.flat(), low = Math.min(...all) / 1.3, high = Math.max(...all) * 1.3;
    const [x, y] = axes(svg, 300, sizes, [low, high], decades(low, high));
    const edge = part => band.map((pair, i) => [x(along[i]), y(pair[part])]);
    add(svg, "path", {class: "band", d: `${path(edge(0))}${path(edge(1).reverse()).replace("M", "L")}Z`});
    add(svg, "path", {class: "fitted", d: path(curve.map((t, i) => [x(along[i]), y(t)]))});
    add(svg, "circle", {class: "chosen", cx: x(size), cy: y(time(fit, size, p, nodes)), r: 6});
    svg.setAttribute("aria-label", `Predicted time of ${fit.collective} on ${count(nodes, "node")} and ${p} ranks: `
      + `${seconds(curve[0])} at ${binary(sizes[0])}, ${seconds(curve[curve.length - 1])} at ${binary(sizes[sizes.length - 1])}.`);
  }

  // ---- the gap between messages ---------------------------------------------------------------------------------------

  // Seconds of a program (0 or 1) at a gap: linear between the gaps at which Python ran it.
  function atGap(verdict, which, gap) {
    const curve = verdict.curve, after = Math.max(1, curve.findIndex(point => point[0] >= gap));
    const [[low, ...before], [high, ...then]] = [curve[after - 1], curve[after]];
    return before[which] + (then[which] - before[which]) * (high > low ? (gap - low) / (high - low) : 0);
  }

  function byGap(element) {
    const choice = element.querySelector("select"), slider = element.querySelector("input");
    let verdict;
    const ends = () => [verdict.curve[0][0], verdict.curve[verdict.curve.length - 1][0]];
    const draw = () => {
      verdict = numbers.turned[+choice.value];
      const [least, most] = ends(), gap = least + (most - least) * slider.value / slider.max;
      const times = [0, 1].map(which => atGap(verdict, which, gap)), first = times[1] < times[0] ? 1 : 0;
      slider.setAttribute("aria-valuetext", seconds(gap));
      element.querySelector("output").textContent = seconds(gap);
      const said = element.querySelector(".said");
      said.textContent = `${verdict.what}, g = ${seconds(gap)}: ${verdict.programs[first]} ${seconds(times[first])}, `
        + `${verdict.programs[1 - first]} ${seconds(times[1 - first])}. The verdict turns at g = ${seconds(verdict.turns)}.`;
      said.dataset.quicker = verdict.programs[first];
      drawGaps(element.querySelector(".gaps"), verdict, gap, first);
    };
    choice.addEventListener("change", () => { slider.value = 0; draw(); });
    slider.addEventListener("input", draw);
    slider.value = 0;
    return draw;
  }

  function drawGaps(svg, verdict, gap, first) {
    const width = Math.max(280, svg.parentElement.clientWidth), height = 240, left = 64, right = 14, top = 12, bottom = 30;
    const {curve} = verdict, most = curve[curve.length - 1][0], high = 1.1 * Math.max(...curve.flatMap(point => point.slice(1)));
    const x = value => left + (width - left - right) * value / most, y = value => top + (height - top - bottom) * (1 - value / high);
    svg.replaceChildren();
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    for (const part of [0, .25, .5, .75, 1]) {
      add(svg, "line", {class: "grid", x1: left, x2: width - right, y1: y(part * high), y2: y(part * high)});
      add(svg, "text", {x: left - 8, y: y(part * high) + 4, "text-anchor": "end"}, seconds(part * high));
      if (part === .25 || part === .75) continue;
      add(svg, "text", {x: x(part * most), y: height - bottom + 18, "text-anchor": part < 1 ? "middle" : "end"}, seconds(part * most));
    }
    add(svg, "line", {class: "axis", x1: x(verdict.turns), x2: x(verdict.turns), y1: top, y2: height - bottom});
    for (const which of [0, 1]) {
      add(svg, "path", {class: which ? "fitted" : "other", d: path(curve.map(point => [x(point[0]), y(point[1 + which])]))});
      const end = curve[curve.length - 1], above = end[1 + which] > end[2 - which];
      add(svg, "text", {x: width - right - 4, y: y(end[1 + which]) + (above ? -6 : 16), "text-anchor": "end"}, verdict.programs[which]);
    }
    add(svg, "circle", {class: "chosen", cx: x(gap), cy: y(atGap(verdict, first, gap)), r: 6});
    svg.setAttribute("aria-label", `${verdict.what}: ${verdict.programs[1]} is quicker below a gap of ${seconds(verdict.turns)}, `
      + `${verdict.programs[0]} above it.`);
  }

  const drawings = [
    ...[...document.querySelectorAll(".comparison")].map(comparison),
    ...[...document.querySelectorAll(".prediction")].map(prediction),
    ...[...document.querySelectorAll(".by-gap")].map(byGap),
  ];
  const drawAll = () => drawings.forEach(draw => draw());
  let width = 0;
  new ResizeObserver(() => {  // a drawing keeps the size of its letters, so it is made anew for another width
    if (width !== (width = document.body.clientWidth)) drawAll();
  }).observe(document.body);
  drawAll();

  window.explained = {numbers, closedForm, time, interval, atGap, seconds, binary, bytes};
})();
