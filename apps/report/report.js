// Draws the page from the JSON in #data (report_json.h): line charts with dygraphs, the rest with
// plain elements. Texts of a run are only ever set as textContent or as attributes.
'use strict';
const {runs, renewed_s: renewed} = JSON.parse(document.getElementById('data').textContent);
const alone = runs.length === 1;
const many = runs.length > 8;  // then there are only curves and a table, which is their legend
runs.forEach((run, i) => run.at = i);
const kNone = '–';

// ------------------------------------------------------------------------------ numbers as text
const finite = Number.isFinite;
function significant(value, digits = 4) {
  if (!finite(value)) return kNone;
  const size = Math.abs(value);
  if (size >= 1e15 || (size > 0 && size < 1e-6)) return value.toExponential(digits - 1).replace(/\.?0*e\+?/, 'e');
  return String(Number(size >= 10 ** digits ? value.toFixed(0) : value.toPrecision(digits)));
}
function scaled(value, unit = '') {
  if (!finite(value)) return kNone;
  let prefix = '';
  for (const next of ['k', 'M', 'G', 'T', 'P']) {
    if (Math.abs(value) < 999.5) break;
    value /= 1000;
    prefix = next;
  }
  return (significant(value, 3) + ' ' + prefix + unit).trim();
}
const bytes = value => scaled(value, 'B');
function duration(seconds) {
  if (!finite(seconds)) return kNone;
  for (const [least, unit, name] of [[5400, 3600, 'h'], [120, 60, 'min'], [1, 1, 's'], [1e-3, 1e-3, 'ms']])
    if (seconds >= least) return significant(seconds / unit, 3) + ' ' + name;
  return seconds === 0 ? '0 s' : significant(seconds * 1e6, 3) + ' µs';
}
const times = ratio => finite(ratio) ? significant(ratio, 3) + '×' : kNone;
const plural = (count, word) => `${count} ${word}${count == 1 ? '' : 's'}`;
const percent = (part, whole) => 100 * part / whole + '%';

// Round values within [low, high], about `count` of them. Halving first avoids overflow.
function ticks(low, high, count) {
  const rough = (high / 2 - low / 2) / count * 2, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map(m => m * power).find(s => s >= rough * 0.999);
  const out = [];
  if (!(step > 0 && finite(step))) return [low];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9 && out.length < 50; ++i) out.push(i * step);
  return out;
}
function logTicks(low, high, count) {
  const decades = Math.log10(high) - Math.log10(low), every = Math.max(1, Math.ceil(decades / count)), out = [];
  if (decades < 0.9) return ticks(low, high, count);
  for (let e = Math.floor(Math.log10(low)); e <= 308 && 10 ** e <= high; e += every)
    for (const m of decades < 2.2 ? [1, 2, 5] : [1])
      if (m * 10 ** e >= low && m * 10 ** e <= high) out.push(m * 10 ** e);
  return out;
}

// ----------------------------------------------------------------------------------- elements
const svgSpace = new DOMParser().parseFromString('<svg></svg>', 'text/html').querySelector('svg').namespaceURI;
function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith('on')) node.addEventListener(name.slice(2), value);
    else if (name === 'style') for (const [key, text] of Object.entries(value)) node.style.setProperty(key, text);
    else if (value !== undefined && value !== false) node.setAttribute(name, value === true ? '' : value);
  }
  node.append(...children.flat(Infinity).filter(child => child !== null && child !== undefined));
  return node;
}
const element = (name, attributes, ...children) => fill(document.createElement(name), attributes, children);
const svg = (name, attributes, ...children) => fill(document.createElementNS(svgSpace, name), attributes, children);
const colour = name => ({'--own': `var(--${name})`});
const key = (name, shape = '') => element('i', {class: 'key ' + shape, style: colour(name)});
const legend = (...keys) => element('ul', {class: 'legend'}, keys.map(([label, ...own]) => element('li', {}, key(...own), label)));
const cells = (tag, row) => element('tr', {}, row.map(cell => cell instanceof Node ? cell : element(tag, {}, cell)));
const table = (head, rows, css) => element('table', {class: css}, element('thead', {}, cells('th', head)),
  element('tbody', {}, rows.map(row => cells('td', row))));
const scroll = (...children) => element('div', {class: 'scroll', tabindex: 0}, children);
const section = (id, title, ...children) => element('section', {id}, element('h2', {}, title), children);

// Labels at ticks; `at` says where a tick is, from 0 to 1.
const scale = (ticks, at, text) => element('div', {class: 'scale'}, ticks.map(tick =>
  element('span', {class: at(tick) > 0.97 && 'last', style: {left: percent(at(tick), 1)}}, text(tick))));

// `values` returns head and rows of the table under "Values", which is made when it is opened.
function figure(id, title, note, content, values, wide) {
  const details = values && element('details', {ontoggle: () => {
    if (details.children.length === 1) details.append(scroll(table(...values())));
  }}, element('summary', {}, 'Values'));
  return element('figure', {id, class: wide === true ? 'wide' : wide},
    element('figcaption', {}, element('h3', {}, title), note && element('p', {}, note)), content, details);
}

// -------------------------------------------------------------------------------- line charts
// A chart: {id, title, note, format, zero, smooth, logarithmic, series: [{label, run, colour, dash, dots,
// points: [[step, y, low, high], …]}]}. All share the horizontal axis, its zoom and the cursor.
const charts = [];
const kDashes = [null, [5, 4], [2, 3], [9, 3, 2, 3], [9, 3], [2, 6], [12, 4, 4, 4], [1, 2]];
const css = name => getComputedStyle(document.documentElement).getPropertyValue('--' + name).trim();

// Holds what the reader has set, which outlives a reload: horizontal axis, smoothing, range (null: whole
// run; time in seconds), charts whose vertical axis is not as usual (logarithmic or not), hidden runs,
// sorted column, boxes that were opened or closed.
const kView = 'heddle ' + runs.map(run => `${run.name} ${(run.info || {}).start_time}`).join(' ');
const view = {axis: 'step', smoothing: 0, range: null, flipped: [],
  hidden: runs.slice(8).map(run => run.name), sort: null, down: false, scroll: 0, open: {}, news: '', since: Date.now()};
try {
  Object.assign(view, JSON.parse(sessionStorage.getItem(kView)));
} catch { /* a browser that keeps nothing */ }
const boxes = () => [...document.querySelectorAll('details')].map(box =>
  [`${box.closest('figure, section').id} ${box.firstChild.textContent}`, box]);
const keepView = () => {
  view.scroll = scrollY;
  view.open = Object.fromEntries(boxes().map(([name, box]) => [name, box.open]));
  try {
    sessionStorage.setItem(kView, JSON.stringify(view));
  } catch { /* nor here */ }
};
const hidden = label => view.hidden.includes(label);
const flip = (list, item) => list.includes(item) ? list.filter(other => other !== item) : [...list, item];

// The horizontal axes. A run's position at a step lies on the line between two points of its curves.
const longest = Math.max(...runs.map(run => run.facts.seconds));
const [timeUnit, unitSeconds] = longest > 10800 ? ['hours', 3600] : longest > 180 ? ['minutes', 60] : ['seconds', 1];
const kAxes = {
  step: {label: 'step'},
  epoch: {label: 'epoch'},
  time: {label: `training time, ${timeUnit}`, unit: unitSeconds},  // without validation
  bytes: {label: 'bytes sent by one learner', format: bytes},
};
const axesThere = Object.keys(kAxes).filter(name => ({step: true, epoch: runs.every(run => finite(run.curves.epoch[0])),
  time: longest > 0, bytes: runs.some(run => run.exchanges)})[name]);
if (!axesThere.includes(view.axis)) Object.assign(view, {axis: 'step', range: null});
const axisUnit = () => kAxes[view.axis].unit || 1;
function position(run, step) {
  if (view.axis === 'step') return step;
  const xs = run.curves.step, ys = run.curves[view.axis], unit = axisUnit();
  if (view.axis === 'bytes' && !run.exchanges) return NaN;
  let high = xs.findIndex(x => x >= step);
  if (high < 0) high = xs.length - 1;
  const low = Math.max(0, high - 1), [a, b] = [ys[low], ys[high]];
  if (!finite(a) || !finite(b)) return NaN;
  const part = xs[high] > xs[low] ? (step - xs[low]) / (xs[high] - xs[low]) : 1;
  return (a + (b - a) * Math.max(0, Math.min(1, part))) / unit;
}

// The exponential moving average with bias correction: its start is not pulled towards zero.
function smoothed(points) {
  let sum = 0, weight = 0;
  return points.map(([x, y]) => {
    sum = view.smoothing * sum + (1 - view.smoothing) * y;
    weight = view.smoothing * weight + 1 - view.smoothing;
    return [x, sum / weight];
  });
}

class LineChart {
  constructor(spec) {
    Object.assign(this, spec);
    const all = this.series.flatMap(s => s.points.flatMap(p => p.slice(1)));
    const largest = all.reduce((most, v) => Math.max(most, Math.abs(v)), 0);
    this.factor = largest > 1e290 ? 1e-10 : 1;  // differences of what is drawn must be finite
    this.place();
    this.chart = element('div', {class: 'chart'});
    this.cursor = element('div', {class: 'cursor', hidden: true});
    this.tip = element('div', {class: 'tip', hidden: true, 'aria-live': 'polite'});
    this.plot = element('div', {class: 'plot', tabindex: 0, role: 'img', 'aria-label': this.title}, this.chart, this.cursor, this.tip);
    this.below = element('p', {class: 'x-label'}, kAxes[view.axis].label);
    this.keys = this.series.map(s => element('button', {type: 'button', 'aria-pressed': String(!hidden(s.label)), onclick: () => toggle(s.label)},
      key(s.colour, 'line' + (s.dash ? ' dashed' : '')), s.label));
    this.logKey = all.some(v => v > 0) ? element('button', {type: 'button', class: 'log', 'aria-pressed': String(this.log), onclick: () => {
      view.flipped = flip(view.flipped, this.id);
      this.logKey.setAttribute('aria-pressed', this.log);
      this.redraw();
    }}, 'log') : null;
    this.figure = figure(this.id, this.title, this.note,
      [this.plot, this.below, this.keys.length > 1 && !many ? element('ul', {class: 'legend'}, this.keys.map(k => element('li', {}, k))) : null],
      () => [['series', kAxes[view.axis].label, this.title], this.series.flatMap(s => s.shown.map(p =>
        [s.label, significant(p[0], 7), significant(p[1], 6)]))]);
    if (this.logKey) this.figure.querySelector('h3').after(this.logKey);
  }
  get log() {
    return !!this.logarithmic !== view.flipped.includes(this.id);
  }
  get window() {
    return view.range ? view.range.map(x => x / axisUnit()) : this.range;
  }
  // Puts the points on the horizontal axis.
  place() {
    for (const s of this.series)
      s.shown = s.points.map(([step, ...ys]) => [position(s.run, step), ...ys]).filter(([x]) => finite(x));
    const xs = this.series.filter(s => !hidden(s.label)).flatMap(s => s.shown.map(p => p[0]));
    const ends = runs.filter(run => !hidden(run.name)).map(run => position(run, run.facts.steps)).filter(finite);
    this.range = [Math.min(0, ...xs), Math.max(...xs, ...ends, 1e-9)];
    this.range[1] += (this.range[1] - this.range[0]) * 0.015;  // so that the last mark is not cut off
  }
  drawn([, ...ys]) {
    return !this.log || ys.every(y => y > 0);
  }
  // The rows that dygraphs wants: every x that any series has, null where a series has no value.
  rows() {
    const rows = new Map();
    this.series.forEach((s, i) => {
      for (const [x, y] of this.smooth && view.smoothing && !s.dots ? smoothed(s.shown) : s.shown) {
        if (!rows.has(x)) rows.set(x, [x, ...this.series.map(() => null)]);
        if (this.drawn([x, y])) rows.get(x)[i + 1] = y * this.factor;
      }
    });
    return rows.size ? [...rows.values()].sort((a, b) => a[0] - b[0]) : [[0, ...this.series.map(() => null)]];
  }
  // The range of y within [x0, x1], with some room.
  yRange([x0, x1]) {
    let low = Infinity, high = -Infinity;
    for (const s of this.series)
      for (const [x, ...ys] of hidden(s.label) ? [] : s.shown)
        if (x >= x0 && x <= x1)
          for (const y of ys.filter(y => !this.log || y > 0)) [low, high] = [Math.min(low, y * this.factor), Math.max(high, y * this.factor)];
    if (low > high) return this.log ? [1, 10] : [0, 1];
    if (this.log) {
      const room = high > low ? (high / low) ** 0.06 : 2;
      return [low / room, Math.min(high * room, 1e300)];
    }
    if (this.zero) low = Math.min(low, 0);
    const room = high > low ? (high - low) * 0.06 : Math.abs(high) * 0.1 + 1e-9;
    return [this.zero && low === 0 ? 0 : low - room, high + room];
  }
  colours() {
    return {colors: this.series.map(s => css(s.colour)), gridLineColor: css('grid'), axisLineColor: css('base')};
  }
  // Returns the options that a reader's choice changes.
  options() {
    const format = value => (this.format || significant)(value / this.factor);
    const ticker = (count, log, label) => (a, b) => (log ? logTicks : ticks)(a, b, count).map(v => ({v, label: label(v)}));
    return {dateWindow: this.window, valueRange: this.yRange(this.window),
      axes: {x: {drawGrid: false, pixelsPerLabel: 80, ticker: ticker(4, false, kAxes[view.axis].format || (value => significant(value, 6)))},
        y: {logscale: this.log, axisLabelWidth: 56, ticker: ticker(5, this.log, format)}}};
  }
  draw() {
    const {mousedown, willDestroyContextMyself} = Dygraph.defaultInteractionModel;  // with the second it ends a drag itself
    this.graph = new Dygraph(this.chart, this.rows(), {
      labels: ['x', ...this.series.map((s, i) => 's' + i)], ...this.colours(), legend: 'never', strokeWidth: 2,
      connectSeparatedPoints: true, highlightCircleSize: 0, rightGap: 8, visibility: this.series.map(s => !hidden(s.label)),
      plotter: [paintBehind, Dygraph.Plotters.linePlotter], animatedZooms: false, ...this.options(),
      interactionModel: {mousedown, willDestroyContextMyself, dblclick: () => zoom(null)},  // no touch: it scrolls the page
      series: Object.fromEntries(this.series.map((s, i) => ['s' + i, {drawPoints: !!s.dots || s.points.length === 1, pointSize: 3,
        strokePattern: kDashes[(s.dash || 0) % kDashes.length]}])),
      zoomCallback: (x0, x1) => { if (x0 !== this.window[0] || x1 !== this.window[1]) zoom([x0, x1]); },
    });
    this.graph.report = this;
    this.plot.addEventListener('pointermove', event => {
      const box = this.chart.getBoundingClientRect();
      cursorTo(this.graph.toDataXCoord(event.clientX - box.left));
    });
    for (const name of ['pointerleave', 'blur']) this.plot.addEventListener(name, () => cursorTo(null));
    this.plot.addEventListener('focus', () => { if (this.plot.matches(':focus-visible')) cursorTo(this.window[1]); });
    this.plot.addEventListener('keydown', event => this.key(event));
  }
  redraw() {
    this.graph.updateOptions({file: this.rows(), ...this.options()});
  }
  nearest(points, x) {
    return points.reduce((a, b) => Math.abs(b[0] - x) < Math.abs(a[0] - x) ? b : a);
  }
  cursorAt(x) {
    const shown = x === null ? [] : this.series.filter(s => !hidden(s.label) && s.shown.length);
    this.tip.hidden = this.cursor.hidden = !shown.length;
    if (!shown.length) return;
    const near = shown.map(s => this.nearest(s.shown, x));
    const at = this.nearest(near, x)[0], left = this.graph.toDomXCoord(at), format = this.format || significant;
    const {label, format: formatX} = kAxes[view.axis];
    this.at = at;
    this.cursor.style.left = left + 'px';
    this.tip.replaceChildren(element('b', {}, `${label.split(',')[0]} ${formatX ? formatX(at) : significant(at, 6)}`),
      ...shown.map((s, i) => element('div', {}, key(s.colour, 'dot'), `${s.label}: ${format(near[i][1])}`)));
    const room = this.plot.clientWidth - this.tip.offsetWidth;
    this.tip.style.left = Math.max(0, left > room - 12 ? left - this.tip.offsetWidth - 12 : left + 12) + 'px';
  }
  // Arrows, Home and End move the cursor along the points; + and - zoom around it, 0 and Escape show all.
  key(event) {
    const xs = [...new Set(this.series.flatMap(s => hidden(s.label) ? [] : s.shown.map(p => p[0])))].sort((a, b) => a - b);
    const i = xs.indexOf(this.at), width = this.window[1] - this.window[0];
    const move = {ArrowLeft: i - 1, ArrowRight: i + 1, Home: 0, End: xs.length - 1}[event.key];
    const factor = {'+': 0.5, '=': 0.5, '-': 2}[event.key], out = event.key === '0' || event.key === 'Escape';
    if ((move === undefined && !factor && !out) || !xs.length) return;
    event.preventDefault();
    if (move !== undefined) return cursorTo(xs[Math.max(0, Math.min(xs.length - 1, move))]);
    const middle = this.at ?? this.window[1], part = factor * width / 2;
    zoom(out ? null : [Math.max(this.range[0], middle - part), Math.min(this.range[1], middle + part)]);
  }
}

// Paints the band from low to high, and the unsmoothed line, under a series.
function paintBehind(e) {
  const chart = e.dygraph.report || charts.find(c => !c.graph && c.chart === e.dygraph.maindiv_);
  const series = chart && chart.series[Number(e.setName.slice(1))];
  if (!series || series.dots) return;
  const context = e.drawingContext, place = (x, y) => [e.dygraph.toDomXCoord(x), e.dygraph.toDomYCoord(y * chart.factor)];
  context.save();
  context.globalAlpha = 0.18;
  context.fillStyle = context.strokeStyle = e.color;
  context.beginPath();
  const points = series.shown.filter(point => chart.drawn(point));
  if (points[0] && points[0].length > 2) {
    for (const [x, , , high] of points) context.lineTo(...place(x, high));
    for (const [x, , low] of [...points].reverse()) context.lineTo(...place(x, low));
    context.fill();
  } else if (chart.smooth && view.smoothing) {
    context.globalAlpha = 0.3;
    for (const [x, y] of points) context.lineTo(...place(x, y));
    context.stroke();
  }
  context.restore();
}

const cursorTo = x => charts.forEach(chart => chart.cursorAt(x));
const redraw = () => charts.forEach(chart => chart.redraw());
function zoom(range) {
  view.range = range && range.map(x => x * axisUnit());
  redraw();
}
function toggle(label) {
  view.hidden = flip(view.hidden, label);
  for (const button of document.querySelectorAll('[data-run]'))
    if (button.dataset.run === label) button.setAttribute('aria-pressed', !hidden(label));
  for (const chart of charts)
    chart.series.forEach((s, i) => {
      if (s.label !== label) return;
      chart.keys[i].setAttribute('aria-pressed', !hidden(label));
      chart.graph.setVisibility(i, !hidden(label));
    });
  charts.forEach(chart => chart.place());
  redraw();
}
function setAxis(axis) {
  view.axis = axis;
  view.range = null;
  for (const chart of charts) {
    chart.place();
    chart.at = undefined;
    chart.below.textContent = kAxes[axis].label;
    for (const values of chart.figure.querySelectorAll('details')) {  // made anew when it is opened
      values.open = false;
      values.querySelector('.scroll')?.remove();
    }
  }
  cursorTo(null);
  redraw();
}

// A chart's figure; null where no series has a point.
function lineChart(spec) {
  spec.series = spec.series.map(s => ({...s, points: s.points.filter(point => point.every(finite))})).filter(s => s.points.length);
  if (!spec.series.length) return null;
  charts.push(new LineChart(spec));
  return charts.at(-1).figure;
}

const kScores = {acc1: 'Accuracy', ppl: 'Perplexity', bpc: 'Bits per character', loss: 'Validation loss'};
function curves() {
  const column = (run, ...ys) => run.curves.step.map((at, i) => [at, ...ys.map(y => run.curves[y][i])]);
  const validations = (run, name) => run.scores.filter(s => s.split === 'valid').map(s => [s.step, s[name]]);
  const own = run => ({label: run.name, run, colour: 'c' + run.at % 8, dash: Math.floor(run.at / 8)});
  const series = points => runs.map(run => ({...own(run), points: points(run)}));
  const dots = points => series(points).map(s => ({...s, dots: true}));
  const binned = runs.some(run => run.curves.bins) ? '; a point is the mean over the steps around it' : '';
  const score = runs[0].score_key;
  const loss = alone ? [{...own(runs[0]), label: 'training', points: column(runs[0], 'loss', 'low', 'high')},
    {label: 'validation', run: runs[0], colour: 'c5', dots: true, points: validations(runs[0], 'loss')}] : series(run => column(run, 'loss'));
  // The same for all runs that exchange, or not drawn.
  const sending = runs.filter(run => run.exchanges);
  const dense = sending.find(run => sending.every(other => other.curves.dense === run.curves.dense));
  return [
    lineChart({id: 'loss', title: alone ? 'Loss' : 'Training loss', smooth: true, series: loss,
      note: `Mean over the learners, in nats${alone ? '. Pale: lowest to highest' : ''}${binned}`}),
    score === 'loss' && alone ? null : lineChart({id: 'score', title: kScores[score], logarithmic: score === 'ppl',
      note: `On the validation set${score === 'acc1' ? ', in percent' : ''}`, series: dots(run => validations(run, score))}),
    lineChart({id: 'lr', title: 'Learning rate', zero: true, series: series(run => column(run, 'lr')).map((s, i) => ({...s, dash: i}))}),
    lineChart({id: 'gradient', title: 'Gradient norm', smooth: true, series: series(run => column(run, 'norm')),
      note: `Of the mean gradient before clipping${binned}`}),
    lineChart({id: 'bytes', title: 'Bytes sent in a step', logarithmic: true, format: bytes,
      note: `By one learner, everything included: indices, scales, checks. Grey: what a dense exchange sends${binned}`,
      series: [...series(run => column(run, 'sent')), {label: 'no compression', run: dense, colour: 'c8', dash: 1,
        points: dense ? [dense.curves.step[0], Math.max(...sending.map(run => run.facts.steps))].map(x => [x, dense.curves.dense]) : []}]}),
    lineChart({id: 'decoder-error', title: 'Decoder\'s error', zero: true, series: series(run => column(run, 'decoder_error')),
      note: `LGC's autoencoder: the share of the sums' energy that decoding loses, while it is trained${binned}`}),
    lineChart({id: 'epsilon', title: 'Privacy spent', zero: true, series: series(run => column(run, 'epsilon')),
      note: 'Epsilon of the weights after a step: what they reveal of one unit\'s data'}),
    lineChart({id: 'consensus', title: 'Consensus error', logarithmic: true, series: dots(run => validations(run, 'consensus_error')),
      note: 'How far the learners\' weights are from their mean, relative to the mean'}),
    runs.every(run => validations(run, 'peak_rss_bytes').length < 2) ? null : lineChart({id: 'memory', title: 'Memory', zero: true, format: bytes, series: dots(run => validations(run, 'peak_rss_bytes')),
      note: 'The most that the first learner\'s process has had resident so far'}),
  ];
}
function tools() {
  const slider = element('input', {type: 'range', min: 0, max: 0.99, step: 0.01, value: view.smoothing, oninput: () => {
    view.smoothing = Number(slider.value);
    charts.filter(chart => chart.smooth).forEach(chart => chart.redraw());
  }});
  const axis = element('select', {onchange: () => setAxis(axis.value)}, axesThere.map(name =>
    element('option', {value: name, selected: name === view.axis}, name)));
  return element('p', {class: 'tools'}, element('label', {}, 'over', axis), element('label', {}, 'smoothing', slider),
    element('button', {type: 'button', onclick: () => zoom(null)}, 'whole run'),
    element('span', {}, 'Drag to zoom, double-click for the whole run; on a chart, arrow keys move the cursor and + − 0 zoom'));
}

// --------------------------------------------------------------------------------- bars, dots
const kParts = {data: 'data', forward: 'forward', backward: 'backward', exposed: 'exposed communication', update: 'update',
  compress: 'compress', comm: 'collectives'};
const kColours = {exposed: 'wait'};
const sum = parts => parts.reduce((all, [, , seconds]) => all + seconds, 0);
// Parts are [name, colour, seconds].
const bar = (label, parts, longest, mark = '') => element('div', {class: 'row'}, element('span', {}, label),
  element('div', {class: 'bar'}, parts.filter(part => part[2] > 0).map(([name, own, seconds]) => element('i',
    {title: `${name}: ${duration(seconds)}`, style: {...colour(own), width: percent(seconds, longest)}}))),
  element(mark ? 'b' : 'span', {}, duration(sum(parts)) + mark));

function breakdown() {
  if (many || runs.some(run => !run.breakdown)) return null;
  const parts = (run, names) => names.filter(name => run.breakdown[name] !== null)
    .map(name => [kParts[name], kColours[name] || name, run.breakdown[name]]);
  const computing = ['data', 'forward', 'backward', 'exposed', 'update'], exchanging = ['compress', 'comm'];
  const longest = Math.max(...runs.flatMap(run => [sum(parts(run, computing)), sum(parts(run, exchanging))]));
  const exchanged = runs.some(run => run.breakdown.comm !== null);
  return figure('breakdown', 'Where a step\'s time goes', 'Mean over the second half of the run. Communication is exposed where the ' +
    'computing thread has to wait for it; the rest is hidden by backward' +
    (runs.some(run => Number(setting(run, 'shadow')) > 0) ? '. The update includes what --shadow compares' : ''),
    [runs.map(run => [alone ? null : element('div', {class: 'group'}, run.name), bar('computing', parts(run, computing), longest),
      run.breakdown.comm === null ? null : bar('exchanging', parts(run, exchanging), longest)]),
    legend(...Object.keys(kParts).filter(name => exchanged || !['exposed', ...exchanging].includes(name))
      .map(name => [kParts[name], kColours[name] || name]))],
    () => [['run', 'part', 'seconds'], runs.flatMap(run => parts(run, Object.keys(kParts)).map(([name, , s]) =>
      [run.name, name, significant(s, 6)]))]);
}

function layerBytes(run, id, own) {
  if (!run.layers) return null;
  const rows = run.layers.filter(row => row.sent > 0 && row.dense > 0), all = rows.flatMap(row => [row.dense, row.sent]);
  if (!rows.length) return null;
  const low = Math.min(...all) / 1.3, high = Math.max(...all) * 1.3;
  const part = value => Math.log(value / low) / Math.log(high / low), at = value => percent(part(value), 1);
  const line = row => {
    const kinds = Object.entries(row.kinds).map(([kind, sent]) => `; ${kind} ${bytes(sent)}`).join('');
    return element('div', {class: 'row layer', title: `${row.name}: dense ${bytes(row.dense)}, sent ${bytes(row.sent)}${kinds}`},
      element('span', {}, row.name), element('div', {class: 'track'},
        element('i', {class: 'thread', style: {left: at(Math.min(row.sent, row.dense)),
          width: percent(Math.abs(Math.log(row.dense / row.sent)), Math.log(high / low))}}),
        element('i', {class: 'key hollow', style: {left: at(row.dense)}}),
        element('i', {class: 'key dot', style: {...colour(own), left: at(row.sent)}})), element('span', {}, times(row.dense / row.sent)));
  };
  return figure(id, 'Bytes by layer, before and after', 'Bytes that one learner sends for a layer in a step, mean over the run ' +
    'including its dense start; logarithmic scale',
    [rows.map(line), element('div', {class: 'row layer'}, element('span'), scale(logTicks(low, high, 3), part, bytes)),
      legend(['dense', 'c8', 'hollow'], ['sent', own, 'dot'])],
    () => [['layer', 'dense, bytes', 'sent, bytes', 'ratio'], run.layers.map(row =>
      [row.name, significant(row.dense, 7), significant(row.sent, 7), significant(row.dense / row.sent)])]);
}

function choices(run, id) {
  if (!run.choices || !run.choices.buckets.length) return null;
  const {decisions, buckets} = run.choices, last = decisions.at(-1), kMost = 40;
  const parts = ([, code, comm]) => [['encoding', 'compress', code || 0], ['collectives', 'comm', comm || 0]];
  const name = (bucket, i) => `bucket ${i}` + (bucket.parameters ? `: ${[...new Set(bucket.parameters)].join(' … ')}` : '');
  const longest = Math.max(...buckets.flatMap(b => [sum(parts(b.dense)), sum(parts(b.packed))]));
  if (!(longest > 0)) return null;
  const joined = buckets.filter(b => b.joined).length;
  const note = `After step ${last.step}: ${last.compressed} of ${last.buckets} buckets are compressed` +
    (joined ? `, sent as ${plural(last.buckets - joined, 'message')}` : '') + `. From the start of backward a step takes ` +
    `${duration(last.dense_s)} if all are dense, ${duration(last.compressed_s)} if all are compressed` + (last.dropped ?
    `; another choice was expected to take ${duration(last.chosen_s)}, took ${duration(last.found_s)} and was dropped` :
    `, and ${duration(last.chosen_s)} as chosen, predicted from measurements of each bucket` +
    (last.found_s === null ? '' : `; then measured: ${duration(last.found_s)}`)) +
    (buckets.length > kMost ? `. Only the first ${kMost} buckets are drawn; the table has all` : '');
  const one = (b, i) => [element('div', {class: 'group'}, name(b, i)), bar('dense', parts(b.dense), longest, b.compressed ? '' : ' ✓'),
    bar('compressed', parts(b.packed), longest, b.compressed ? ' ✓' : '')];
  const seconds = value => significant(value, 6);
  const content = [buckets.slice(0, kMost).map(one), legend(['encoding', 'compress'], ['collectives', 'comm'])];
  const decided = decisions.map(d => [d.step, `${d.compressed} of ${d.buckets}`, seconds(d.chosen_s),
    seconds(d.found_s) + (d.dropped ? ', dropped' : ''), seconds(d.dense_s), seconds(d.compressed_s)]);
  content.push(element('details', {}, element('summary', {}, 'Decisions'), scroll(table(['after step', 'compressed buckets',
    'expected, s', 'then measured, s', 'all dense, s', 'all compressed, s'], decided))));
  return figure(id, 'Dense or compressed, by bucket', note, content, () => [['bucket', 'chosen', 'dense: ready, s', 'encoding, s',
    'collectives, s', 'compressed: ready, s', 'encoding, s', 'collectives, s'], buckets.map((b, i) => [name(b, i),
    (b.compressed ? 'compressed' : 'dense') + (b.joined ? ', with the one before' : ''), ...[...b.dense, ...b.packed].map(seconds)])]);
}

// --------------------------------------------------------------------------------------- maps
// `cell` returns {title, value, end, t}: the colour is `begin` mixed with t percent of `end`.
function heatMap(id, title, note, map, begin, ramp, cell) {
  const from = map.steps[0], width = map.end - from;
  const row = ({name, cells}) => {
    const out = [];
    for (let c = 0, next; c < cells.length; c = next) {  // merges equal neighbours
      const text = JSON.stringify(cells[c]);
      for (next = c + 1; next < cells.length && JSON.stringify(cells[next]) === text; ++next);
      if (!cells[c]) continue;
      const {title: about, end, t} = cell(cells[c]), to = next < cells.length ? map.steps[next] : map.end;
      out.push(element('i', {title: `${name}, from step ${map.steps[c]}: ${about}`, style: {left: percent(map.steps[c] - from, width),
        width: percent(to - map.steps[c], width), '--begin': `var(--${begin})`, '--end': `var(--${end})`, '--t': t + '%'}}));
    }
    return [element('span', {}, name), element('div', {class: 'cells'}, out)];
  };
  return figure(id, title, note, [scroll(element('div', {class: 'map'}, map.rows.map(row), element('span', {}, 'step\u2003\u2003'),
    scale(ticks(from, map.end, 8), tick => (tick - from) / width, tick => significant(tick, 7)))), ramp], () => [['layer', ...map.steps.map(step => `step ${step}`)],
    map.rows.map(({name, cells}) => [name, ...cells.map(c => c ? cell(c).value : '')])], true);
}
const ramp = (low, colours, high) => element('p', {class: 'ramp'}, low, element('i', {style: {background:
  `linear-gradient(90deg, ${colours.map(name => `var(--${name})`).join(', ')})`}}), high);

function plans(run, id) {
  if (!run.plans) return null;
  return heatMap(id, 'Plans, layer by layer', `The setting of ${run.plans.family} that each plan gave a layer, against the uniform ` +
    'one. A plan holds until the next', run.plans, 'mid', ramp('a quarter of the uniform bytes', ['cool', 'mid', 'hot'], 'four times'),
    ([setting, uniform, own, even]) => {
      const finer = Math.max(-2, Math.min(2, Math.log2(own / even) || 0));
      return {title: `setting ${significant(setting)}, uniform ${significant(uniform)}; ${bytes(own)} of ${bytes(even)}`,
        value: significant(setting), end: finer < 0 ? 'cool' : 'hot', t: Math.abs(finer) * 50};
    });
}
function residuals(run, id) {
  if (!run.residuals) return null;
  const most = Math.max(0, ...run.residuals.rows.flatMap(row => row.cells.map(c => c ? c[0] : 0)));
  return heatMap(id, 'Residuals', 'Norm of the residual over the norm of a step\'s gradient: how many steps\' worth of gradient ' +
    'each layer holds back', run.residuals, 'pale', ramp('0', ['pale', 'deep'], significant(most, 3)), ([ratio, norm]) =>
    ({title: `${significant(ratio)} (norm ${significant(norm)})`, value: significant(ratio), end: 'deep', t: most ? 100 * ratio / most : 0}));
}
function quality(run, id) {
  if (!run.quality) return null;
  const columns = [['contraction', row => row.contraction], ['cosine', row => row.cosine],
    ['residual / gradient', row => row.residual_norm / row.gradient_norm], ['correlation', row => row.correlation],
    ['d / k', row => row.mismatch], ['bound', row => row.bound]];
  const cell = (value, share) => element('td', share && finite(value) ? {class: 'share', style: {'--v':
    100 * Math.max(0, Math.min(1, value)) + '%'}} : {}, significant(value, 3));
  return figure(id, 'Quality meter', `Means over ${plural(run.quality.samples, 'sample')}. Contraction: the part of what was to be sent ` +
    'that was not; below 1 the residual can catch up. Cosine: between what was applied and the dense sum. Correlation: between the learners\' ' +
    `gradients, over all layers ${significant(run.quality.correlation, 3)}. d / k: the part of the right selection that the leader did ` +
    'not choose; bound: the contraction that this allows', scroll(table(['layer', ...columns.map(c => c[0])], run.quality.rows.map(row =>
      [row.name, ...columns.map(([name, value]) => cell(value(row), name !== 'residual / gradient'))]), 'meter')), null, true);
}

// ----------------------------------------------------------------------------------- timeline
function timeline(run, id) {
  if (!run.timeline) return null;
  const {seconds, rows, arrows} = run.timeline, kLane = 44, kBar = 28;
  const range = (own, [name, begin, length, inner]) => element('i', {title: `${name}: ${duration(length)}`,
    class: inner ? 'inner' : length / seconds < 0.02 ? 'thin' : undefined,
    style: {...colour(own), left: percent(begin, seconds), width: percent(length, seconds)}}, inner || length / seconds < 0.02 ? '' : name);
  const lanes = rows.map(row => element('div', {class: 'lane'}, row.ranges.map(r => range(row.track.split(' ')[0], r))));
  const drawing = svg('svg', {class: 'arrows'}), inside = element('div', {style: {position: 'relative'}}, lanes, drawing,
    scale(ticks(0, seconds, 8), tick => tick / seconds, tick => tick ? duration(tick) : ''));
  new ResizeObserver(() => drawing.replaceChildren(...arrows.flatMap(([from, begin, to, end]) => {
    const x = at => at / seconds * inside.clientWidth, down = to > from;
    const y0 = from * kLane + (down ? kBar : 0), y1 = to * kLane + (down ? 0 : kBar), bend = (y0 + y1) / 2, tip = down ? -4 : 4;
    return [svg('path', {d: `M${x(begin)} ${y0}C${x(begin)} ${bend} ${x(end)} ${bend} ${x(end)} ${y1}`}),
      svg('path', {class: 'head', d: `M${x(end)} ${y1}l-2.5 ${tip}h5z`})];
  }))).observe(inside);
  const lengths = element('input', {type: 'range', min: 1, max: 20, step: 0.5, value: 1, oninput: () => {
    inside.style.width = 100 * lengths.value + '%';
  }});
  return figure(id, 'One step, as it ran', 'The first learner, from the run\'s trace. Arrows follow each bucket of gradients from ' +
    'backward to its exchange to its update', [element('p', {class: 'tools'}, element('label', {}, 'zoom', lengths)),
    element('div', {class: 'tracks', 'aria-hidden': 'true'}, rows.map(row => element('div', {}, row.track))),
    element('div', {class: 'times', tabindex: 0}, inside)],
    () => [['track', 'ranges', 'seconds'], rows.map(row => [row.track, row.count, significant(row.busy, 5)])], true);
}

// ----------------------------------------------------------------------- facts, tables, machine
// Rows of [name, text, remark, number to sort by].
function facts(run) {
  // Runs are compared by their tests if all have one, else by their validations.
  const scored = (of, split) => of.scores.filter(s => finite(s[of === run ? key : of.score_key]) && s.split === split);
  // A run that was never scored is in its peers' column.
  const key = [run, ...runs].map(each => each.score_key).find(each => each !== 'loss') ?? 'loss';
  const split = runs.every(each => scored(each, 'test').length) ? 'test' : 'valid';
  const f = run.facts, last = scored(run, split).at(-1);
  const memory = run.scores.findLast(s => finite(s.peak_rss_bytes));
  const rows = [
    [key === 'acc1' ? 'accuracy' : kScores[key].toLowerCase(),
      last ? significant(last[key]) + (key === 'acc1' ? ' %' : '') : kNone,
      last ? `on the ${last.split === 'test' ? 'test' : 'validation'} set, after epoch ${last.epoch}` : '', last && last[key]],
    ['training loss', significant(f.loss), 'mean over the last epoch', f.loss],
    ['steps', String(f.steps) + (alone || run.status === 'done' ? '' : `, ${run.status ?? 'not ended'}`), f.epochs ? `in ${plural(f.epochs, 'epoch')}` : '', f.steps],
    [`${f.unit} per second`, scaled(f.rate), 'second half of the run, all learners', f.rate],
    ['training time', duration(f.seconds), `${duration(f.step_s)} a step`, f.seconds]];
  if (memory) rows.push(['peak memory', bytes(memory.peak_rss_bytes), 'of the first learner\'s process', memory.peak_rss_bytes]);
  const p = run.privacy;
  if (p) rows.push(['epsilon', p.private ? significant(p.epsilon) : 'not private',
    p.private ? `at delta ${p.delta} for ${p.unit}` : 'no noise, noise that repeats, or no account', p.private ? p.epsilon : Infinity]);
  if (run.exchanges) rows.push([run.hosts ? 'sent by one host' : 'sent by one learner', bytes(f.sent), `dense: ${bytes(f.dense)}`, f.sent],
    ['exposed communication', `${significant(100 * f.exposed_s / f.step_s, 3)} %`, `of a step, ${duration(f.exposed_s)}`, f.exposed_s / f.step_s]);
  return rows;
}
// A run's name; clicked, it hides the run in all charts.
const heading = run => element('th', {scope: 'row'}, element('button', {type: 'button', 'data-run': run.name,
  'aria-pressed': String(!hidden(run.name)), onclick: () => toggle(run.name)}, key('c' + run.at % 8, 'line' + (run.at > 7 ? ' dashed' : '')), run.name));
// One row a run. A click on a column's name sorts by it, another one the other way round.
function comparison() {
  const names = [...new Set(runs.flatMap(run => facts(run).map(fact => fact[0])))], flags = many ? differing() : [];
  const own = run => {
    const known = facts(run);
    return [[run.name, run.name],
      ...names.map(name => known.find(fact => fact[0] === name)).map(fact => fact ? [fact[1], fact[3]] : [kNone, NaN]),
      ...flags.map(flag => [settingText(run, flag), setting(run, flag)])];
  };
  const rows = runs.map(run => ({values: own(run).map(cell => cell[1]), row: cells('td', [heading(run), ...own(run).slice(1).map(cell => cell[0])])}));
  // Numbers, then words; what is missing comes last, whatever the direction.
  const kind = value => value === '' || value === null || value === undefined || Number.isNaN(value) ? 2 : Number.isNaN(Number(value)) ? 1 : 0;
  const before = (a, b) => kind(a) - kind(b) || (view.down ? -1 : 1) * (kind(a) ? String(a).localeCompare(String(b)) : Number(a) - Number(b) || 0);
  const heads = ['run', ...names, ...flags].map((name, i) => element('th', {}, element('button', {type: 'button', onclick: () => {
    Object.assign(view, {down: view.sort === i && !view.down, sort: i});
    sort();
  }}, name)));
  const body = element('tbody', {}), sort = () => {
    heads.forEach((head, i) => head.setAttribute('aria-sort', i !== view.sort ? 'none' : view.down ? 'descending' : 'ascending'));
    const sorted = view.sort === null ? rows : [...rows].sort((a, b) => before(a.values[view.sort], b.values[view.sort]));
    body.replaceChildren(...sorted.map(({row}) => row));
  };
  sort();
  return scroll(element('table', {class: 'facts', id: 'comparison'}, element('thead', {}, element('tr', {}, heads)), body));
}
function ratios() {
  if (many || !runs.some(run => run.exchanges)) return null;
  const rows = [['layers', 'values of the compressed tensors alone, as papers report it'],
    ['values', 'values of the whole model, with the tensors that are sent dense'],
    ['wire', 'bytes on the wire, with indices, scales and flags, in the compressed steps'],
    ['run', 'bytes on the wire over the whole run, with its dense start']];
  return section('ratios', 'Compression ratios', element('p', {class: 'note'}, 'The bytes of a dense exchange over the bytes sent ' +
    'by one learner; 1 if nothing is compressed. “–”: the run has not ended, or an earlier version did not record it.'),
    scroll(table(['ratio', ...runs.map(run => run.name), 'what it counts'], rows.map(([name, meaning]) => [name, ...runs.map(run =>
      times(run.ratios['ratio_' + name])), meaning]), 'facts text')));
}
const setting = (run, name) => (run.config.find(entry => entry[0] === name) || [])[1] || '';
const settingText = (run, name) => name === 'compress-start' && setting(run, name) === '-1' ? 'by length' : setting(run, name) || kNone;
const differing = () => [...new Set(runs.flatMap(run => run.config.map(entry => entry[0])))]
  .filter(name => !['json', 'quiet'].includes(name) && new Set(runs.map(run => setting(run, name))).size > 1);
function differences() {
  const rows = differing();
  return rows.length && !many ? section('differences', 'Differing settings', scroll(table(['flag', ...runs.map(run => run.name)],
    rows.map(name => [name, ...runs.map(run => settingText(run, name))]), 'facts left'))) : null;
}
// "resnet20 on cifar-10-batches-bin, 4 learners, network 100mbit,1ms, scalecom:rate=100, lgreco"
function whatRan(run) {
  const said = name => ['none', 'uniform'].includes(setting(run, name)) ? '' : setting(run, name);
  const data = said('data').replace(/\/+$/, '').split('/').pop();
  return [[said('arch') || said('preset'), data].filter(Boolean).join(' on '), run.learners ? plural(run.learners, 'learner') : '',
    said('net') && `network ${said('net')}`, Number(said('local-steps')) > 1 && plural(said('local-steps'), 'local step'), said('compress'), said('layerwise')].filter(Boolean).join(', ');
}
function machine(run) {
  const text = value => value === undefined || value === null ? '' : typeof value === 'string' ? value : JSON.stringify(value);
  const info = run.info || {}, host = info.machine || {}, build = info.build || {};
  const list = (...parts) => parts.map(([value, before = '', after = '']) => text(value) && before + text(value) + after).filter(Boolean).join(', ');
  const rows = [['command', Array.isArray(info.argv) ? info.argv.map(text).join(' ') : ''], ['started', text(info.start_time)],
    ['program', list([info.program], [build.git_revision, 'git '], [build.type], [build.compiler])],
    ['processor', list([host.cpu], [host.cores, '', ' cores'])], ['memory', finite(host.memory_bytes) ? bytes(host.memory_bytes) : ''],
    ['system', text(host.system)], ['used', list([info.device], [info.threads && plural(text(info.threads), 'thread'), '', ' a learner'],
      [info.precision], [info.seed, 'seed '])]].filter(row => row[1]);
  return [element('dl', {class: 'machine'}, rows.flatMap(([name, value]) => [element('dt', {}, name), element('dd', {}, value)])),
    element('details', {}, element('summary', {}, 'Configuration'), scroll(table(['flag', 'value'], run.config)))];
}

// ---------------------------------------------------------------------- validation, samples of text
// Rows: the class; columns: what it was taken for. With many classes, a list of the commonest mistakes.
function confusion({classes, confusion, sizes, epoch}) {
  const kMost = 20, name = i => classes[i] ?? `class ${i}`, of = new Map(sizes), counts = new Map();
  let size = Math.max(classes.length, ...sizes.map(([label]) => label + 1));
  for (const [label, guess, count] of confusion) {
    counts.set(label + ' ' + guess, count);
    size = Math.max(size, label + 1, guess + 1);
  }
  const wrong = confusion.filter(([label, guess]) => label !== guess).sort((a, b) => b[2] - a[2]);
  const share = (label, count) => `${significant(100 * count / of.get(label), 3)} %`;
  const list = () => [['class', 'taken for', 'images', 'of the class'], wrong.slice(0, 200).map(([label, guess, count]) =>
    [name(label), name(guess), String(count), share(label, count)])];
  if (!confusion.length) return null;
  const title = size > kMost ? 'Commonest mistakes' : 'Confusion matrix';
  if (size > kMost) return figure('confusion', title, `Validation after epoch ${epoch}`, scroll(table(list()[0], list()[1].slice(0, 12))), list);
  const all = [...Array(size).keys()];
  const cell = (label, guess) => {
    const count = counts.get(label + ' ' + guess) || 0;
    return element('td', {class: label === guess ? 'right' : count ? 'wrong' : undefined, style: {'--v': 100 * count / (of.get(label) || 1) + '%'},
      title: `${name(label)}, taken for ${name(guess)}: ${count} of ${of.get(label) || 0}`}, count || '');
  };
  return figure('confusion', title, `Validation after epoch ${epoch}: images of each class (row) by what they were taken for (column)`,
    scroll(element('table', {class: 'confusion'}, element('thead', {}, element('tr', {}, element('td'), all.map(i => element('th', {}, element('span', {}, name(i)))))),
      element('tbody', {}, all.map(label => element('tr', {}, element('th', {scope: 'row'}, name(label)), all.map(guess => cell(label, guess))))))), list, size > 7 && 'two');
}
// All pictures are in one image, one below the other.
function hardest({classes, images, side, sheet, epoch}) {
  const name = i => classes[i] ?? `class ${i}`, zoom = Math.max(1, Math.round(88 / side)), size = side * zoom;
  const file = String(sheet).replace(/[^A-Za-z0-9+/=]/g, '');
  if (!images.length) return null;
  return figure('hardest', 'Hardest images', `The largest losses of the validation after epoch ${epoch}: what the network took an image for, right (✓) or wrong (✗), and how sure it was; ` +
    'then the class that the image has', element('ul', {class: 'pictures'}, images.map((image, i) => element('li', {title: `image ${image.image}, loss ${significant(image.loss)}`},
    element('i', {role: 'img', 'aria-label': name(image.class), style: {width: size + 'px', height: size + 'px', 'background-image': `url("data:image/png;base64,${file}")`,
      'background-size': `${size}px ${size * images.length}px`, 'background-position': `0 ${-i * size}px`}}),
    element('b', {}, `${image.guess === image.class ? '✓' : '✗'} ${name(image.guess)}, ${significant(100 * image.probability, 3)}\u00a0%`),
    image.guess === image.class ? null : element('span', {}, name(image.class))))),
    () => [['image', 'class', 'guess', 'probability', 'loss'], images.map(image =>
      [String(image.image), name(image.class), name(image.guess), significant(image.probability), significant(image.loss)])], true);
}
function mistakes(run) {
  const m = run.mistakes;
  if (!m) return null;
  return section('mistakes', 'Mistakes', element('div', {class: 'grid'}, confusion(m), hardest(m)));
}
const texts = run => run.texts && run.texts.length ? section(alone ? 'texts' : `run${run.at + 1}-texts`, (alone ? '' : run.name + ': ') + 'Texts by the model',
  element('p', {class: 'note'}, 'What it writes after an epoch, the newest first'), [...run.texts].reverse().map(({epoch, text}, i) =>
    element('details', {open: i === 0}, element('summary', {}, `epoch ${epoch}`), element('pre', {tabindex: 0}, text)))) : null;

// --------------------------------------------------------------------------------------- page
const ownFigures = (run, i) => many ? [] : [layerBytes(run, alone ? 'layer-bytes' : `run${i + 1}-layer-bytes`, 'c' + i),
  ...[['plans', plans], ['choices', choices], ['residuals', residuals], ['quality', quality], ['timeline', timeline]]
    .map(([name, draw]) => draw(run, `run${i + 1}-${name}`))];

document.title = many ? plural(runs.length, 'run') : runs.map(run => run.name).join(' · ');
const status = run => [String((run.info || {}).start_time || '').slice(0, 10), run.status ?? 'not ended when this was written'].filter(Boolean).join(', ');
fill(document.getElementById('page'), {}, [
  element('header', {}, element('p', {class: 'over'}, `heddle, report of ${alone ? 'a run' : plural(runs.length, 'run')}`),
    element('h1', {}, document.title), alone ? [whatRan(runs[0]), status(runs[0])].map(text => element('p', {class: 'note'}, text)) : null,
    many ? element('p', {class: 'note'}, 'The charts show the first eight; a click on a run\'s name shows or hides it') : null,
    runs.flatMap(run => run.skipped.map(what => element('p', {class: 'note broken'}, `${run.name}: skipped: ${what}`)))),
  alone ? element('ul', {class: 'tiles'}, facts(runs[0]).map(([name, value, remark]) => element('li', {}, element('span', {}, name),
    element('b', {}, value), element('small', {}, remark)))) : comparison(),
  section('figures', 'Over the run', tools(), element('div', {class: 'grid'}, [...curves(), breakdown(),
    ...(alone ? ownFigures(runs[0], 0) : [])])),
  runs.filter(run => run.samples).map(run => section('samples', alone ? 'Generated pictures' : run.name + ': generated pictures',
    element('img', {src: `data:image/png;base64,${run.samples}`, alt: 'a column of generated pictures for each class'}))),
  alone ? mistakes(runs[0]) : null, many ? null : runs.map(texts), ratios(),
  alone ? section('machine', 'Machine and configuration', machine(runs[0])) : [differences(), ...(many ? [] : runs).map((run, i) =>
    section(`run${i + 1}`, [key('c' + i, 'dot'), run.name], element('div', {class: 'grid'}, ownFigures(run, i)), machine(run)))],
]);
charts.forEach(chart => chart.draw());
boxes().forEach(([name, box]) => { box.open = view.open[name] ?? box.open; });
scrollTo(0, view.scroll);
addEventListener('pagehide', keepView);
// The page of a run that has not ended loads itself anew, but not while somebody uses it or looks elsewhere, and
// no longer once nothing has changed for ten minutes: then nobody writes it any more.
if (renewed) {
  const news = JSON.stringify(runs.map(run => [run.facts.steps, run.scores.length, (run.texts || []).length]));
  if (news !== view.news) Object.assign(view, {news, since: Date.now()});
  let used = -Infinity;
  for (const name of ['pointerdown', 'pointermove', 'keydown', 'wheel', 'input']) addEventListener(name, () => { used = performance.now(); });
  setInterval(() => {
    if (document.hidden || !getSelection().isCollapsed || performance.now() - used < 4000) view.since = Date.now();
    else if (Date.now() - view.since < 600000) location.reload();
  }, renewed * 1000);
}
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => charts.forEach(chart => chart.graph.updateOptions(chart.colours())));
document.documentElement.dataset.figures = document.querySelectorAll('figure').length;
