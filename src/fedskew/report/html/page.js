"use strict";
{
const byId = (id) => document.getElementById(id);
const data = JSON.parse(byId("data").textContent);
const DASHES = ["", "7 4", "2 3", "10 3 2 3"];
const SHAPES = [
  (x, y) => `M${x - 3.5} ${y}a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0 -7 0Z`,
  (x, y) => `M${x - 3.2} ${y - 3.2}h6.4v6.4h-6.4Z`,
  (x, y) => `M${x} ${y - 4.2}l4 7h-8Z`,
  (x, y) => `M${x} ${y - 4.6}l4.2 4.6l-4.2 4.6l-4.2 -4.6Z`,
  (x, y) => `M${x} ${y + 4.2}l4 -7h-8Z`,
];
// 4 dashes and 5 shapes have no common divisor: 20 methods in a row differ without color.
const style = (group) => ({
  color: `var(--c${group % 7})`,
  dash: DASHES[group % DASHES.length],
  shape: SHAPES[group % SHAPES.length],
});
const escaped = (text) => text.replace(/[&<>"]/g, (sign) => `&#${sign.charCodeAt(0)};`);

// ---- theme and print ------------------------------------------------------------------------------------------------

const THEMES = ["system", "light", "dark"];
byId("theme").addEventListener("click", (event) => {
  const root = document.documentElement;
  const next = THEMES[(THEMES.indexOf(root.dataset.theme || "system") + 1) % THEMES.length];
  if (next === "system") delete root.dataset.theme; else root.dataset.theme = next;
  event.target.textContent = `theme: ${next}`;
});

let closed = [];
addEventListener("beforeprint", () => {
  closed = [...document.querySelectorAll("details:not([open])")];
  for (const each of closed) each.open = true;
});
addEventListener("afterprint", () => { for (const each of closed) each.open = false; });

// ---- curves ---------------------------------------------------------------------------------------------------------

const view = { metric: 1, log: false, window: 1, zoom: null, hidden: new Set(), at: null };
const svg = byId("chart");
let scene = null;

const WRITTEN = {
  percent: (value) => `${(100 * value).toFixed(2)} %`,
  number: (value) => value === 0 ? "0" : Math.abs(value) >= 1e-3 && Math.abs(value) < 1e5 ? String(+value.toPrecision(4)) : value.toExponential(2),
  seconds: (value) => `${+value.toPrecision(3)} s`,
  bytes: (value) => {
    const power = value >= 1 ? Math.min(4, Math.floor(Math.log10(value) / 3)) : 0;
    return `${+(value / 1000 ** power).toPrecision(4)} ${["B", "kB", "MB", "GB", "TB"][power]}`;
  },
};
const written = (value) => WRITTEN[data.metrics[view.metric - 1].kind](value);

/* One run's points, each the mean of the last values up to it; null where a value is not a number, which breaks lines. */
function points(run) {
  const found = [];
  let recent = [];
  for (const row of run.rows) {
    const value = row[view.metric];
    if (value === null) continue;
    if (typeof value !== "number") { recent = []; found.push([row[0], null]); continue; }
    recent.push(value);
    if (recent.length > view.window) recent.shift();
    found.push([row[0], recent.reduce((sum, each) => sum + each, 0) / recent.length]);
  }
  return found;
}

/* A group's mean and range over its runs, by round; one run that is not a number leaves no mean. */
function curve(group) {
  const runs = data.runs.filter((run) => run.group === group).map(points);
  const at = new Map();
  for (const run of runs) for (const [round, value] of run) {
    if (!at.has(round)) at.set(round, []);
    at.get(round).push(value);
  }
  return [...at].sort((a, b) => a[0] - b[0]).map(([round, values]) => {
    const shared = { round, seeds: values.length, of: runs.length, lost: values.filter((value) => value === null).length };
    if (shared.lost) return { ...shared, mean: null };
    const mean = values.reduce((sum, value) => sum + value, 0) / values.length;
    return { ...shared, mean, low: Math.min(...values), high: Math.max(...values) };
  });
}

/* Whether an axis has a place for a value. */
const drawable = (value) => value !== null && !(view.log && value <= 0);

function ticks(low, high, wanted) {
  const rough = (high - low) / wanted;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((each) => each * power >= rough);
  const found = [];
  for (let each = Math.ceil(low / step); each * step <= high + step * 1e-9; each++) found.push(+(each * step).toPrecision(12));
  return found;
}

function logTicks(low, high) {
  const found = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power++)
    for (const each of [1, 2, 5]) if (each * 10 ** power >= low && each * 10 ** power <= high) found.push(each * 10 ** power);
  return found.length > 1 ? found : ticks(low, high, 5);
}

function range(curves, rounds) {
  const [from, to] = view.zoom || [rounds[0], rounds.at(-1)];
  const shown = curves.flatMap((each) => each.points.filter((p) => drawable(p.mean) && p.round >= from && p.round <= to));
  // not Math.min(...shown): there may be more points than a function takes arguments
  let low = shown.reduce((least, p) => Math.min(least, drawable(p.low) ? p.low : p.mean), Infinity);
  let high = shown.reduce((most, p) => Math.max(most, p.high), -Infinity);
  if (!shown.length) [low, high] = view.log ? [0.1, 1] : [0, 1];
  if (low === high) [low, high] = view.log ? [low / 2, high * 2] : [low - Math.abs(low || 1) * .1, high + Math.abs(high || 1) * .1];
  const room = view.log ? 0 : (high - low) * .05;
  return { from, to: to > from ? to : from + 1, low: low - room, high: high + room };
}

function draw() {
  if (!svg) return;
  const curves = data.groups.map((name, group) => ({ name, group, points: view.hidden.has(group) ? [] : curve(group) }))
    .filter((each) => each.points.length);
  const width = Math.max(280, svg.clientWidth || 800), height = width < 560 ? 300 : 400;
  const box = { left: 62, right: width - 14, top: 12, bottom: height - 38 };
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.style.aspectRatio = `${width} / ${height}`;
  byId("unzoom").disabled = !view.zoom;
  scene = null;
  if (!curves.some((each) => each.points.some((point) => drawable(point.mean)))) {
    const why = view.hidden.size ? "nothing to show: choose a method above" : `no number ${view.log ? "above zero " : ""}to show`;
    svg.innerHTML = `<text x="${width / 2}" y="${height / 2}" text-anchor="middle">${why}</text>`;
    return read(null);
  }
  const rounds = [...new Set(curves.flatMap((each) => each.points.map((point) => point.round)))].sort((a, b) => a - b);
  const { from, to, low, high } = range(curves, rounds);
  const x = (round) => box.left + (round - from) / (to - from) * (box.right - box.left);
  const bend = view.log ? (value) => Math.log10(value > 0 ? value : low) : (value) => value;
  const y = (value) => box.bottom - (bend(value) - bend(low)) / (bend(high) - bend(low)) * (box.bottom - box.top);
  const marks = [`<clipPath id="inside"><rect x="${box.left}" y="${box.top - 4}" width="${box.right - box.left}" height="${box.bottom - box.top + 8}"/></clipPath>`];
  for (const each of view.log ? logTicks(low, high) : ticks(low, high, 5))
    marks.push(`<path class="rule" d="M${box.left} ${y(each).toFixed(1)}H${box.right}"/><text x="${box.left - 8}" y="${(y(each) + 4).toFixed(1)}" text-anchor="end">${written(each).replace(/(\.\d*?)0+ %/, "$1 %").replace(". %", " %")}</text>`);
  for (const each of ticks(from, to, width < 560 ? 5 : 10).filter(Number.isInteger))
    marks.push(`<text x="${x(each).toFixed(1)}" y="${box.bottom + 18}" text-anchor="middle">${each}</text>`);
  marks.push(`<text x="${(box.left + box.right) / 2}" y="${height - 4}" text-anchor="middle">round</text><g clip-path="url(#inside)">`);
  for (const each of curves) marks.push(drawn(each, x, y));
  marks.push('</g><path class="cursor" d=""/><rect class="brush" width="0"/>');
  svg.innerHTML = marks.join("");
  scene = { curves, rounds, x, box, from, to, width };
  read(view.at);
}

function drawn({ name, group, points: all }, x, y) {
  const { color, dash, shape } = style(group);
  const place = (round, value) => `${x(round).toFixed(1)} ${y(value).toFixed(1)}`;
  const pieces = [[]];
  for (const point of all) if (drawable(point.mean)) pieces.at(-1).push(point); else pieces.push([]);
  const joined = (draw) => pieces.filter((piece) => piece.length).map((piece) => `M${draw(piece).join("L")}`);
  const line = joined((piece) => piece.map((p) => place(p.round, p.mean))).join("");
  const whole = pieces.flat(), every = Math.max(1, Math.ceil(whole.length / 12));
  const shapes = whole.filter((_, index) => whole.length < 25 || index % every === group % every)
    .map((point) => shape(+x(point.round).toFixed(1), +y(point.mean).toFixed(1))).join("");
  const band = whole.some((point) => point.seeds > 1)
    ? `<path class="band" fill="${color}" d="${joined((piece) => [...piece.map((p) => place(p.round, p.high)), ...piece.map((p) => place(p.round, p.low)).reverse()]).join("Z")}Z"/>` : "";
  return `${band}<path class="line" data-group="${group}" stroke="${color}" stroke-dasharray="${dash}" d="${line}"><title>${escaped(name)}</title></path><path fill="${color}" d="${shapes}"/>`;
}

function says({ mean, seeds, of, lost }) {
  if (mean === null) return `not a number${seeds > 1 ? ` in ${lost} of ${seeds} seeds` : ""}`;
  return written(mean) + (seeds < of ? `, ${seeds} of ${of} seeds` : "");
}

/* Show the values at the round nearest to one that was pointed at. */
function read(round) {
  const tip = byId("tip");
  view.at = round;
  tip.hidden = round === null || !scene;
  if (tip.hidden) { const cursor = svg.querySelector(".cursor"); if (cursor) cursor.setAttribute("d", ""); return; }
  const known = scene.rounds.filter((each) => each >= scene.from && each <= scene.to);
  if (!known.length) { tip.hidden = true; return; }
  const at = known.reduce((best, each) => Math.abs(each - round) < Math.abs(best - round) ? each : best);
  view.at = at;
  const lines = scene.curves.map((each) => ({ ...each, point: each.points.find((point) => point.round === at) }))
    .filter((each) => each.point).sort((a, b) => (b.point.mean ?? -Infinity) - (a.point.mean ?? -Infinity));
  tip.innerHTML = `<b>round ${at}</b>${view.window > 1 ? `, ${byId("smoothed").textContent}` : ""}<table>` + lines.slice(0, 12).map(({ name, group, point }) =>
    `<tr><td>${sample(group)} <bdi>${escaped(name)}</bdi></td><td>${says(point)}</td><td>${point.mean !== null && point.seeds > 1 ? `${written(point.low)} to ${written(point.high)}` : ""}</td></tr>`).join("")
    + `</table>${lines.length > 12 ? `and ${lines.length - 12} more` : ""}`;
  const place = scene.x(at) / scene.width * svg.clientWidth;
  svg.querySelector(".cursor").setAttribute("d", `M${scene.x(at)} ${scene.box.top}V${scene.box.bottom}`);
  const right = place < svg.clientWidth / 2;
  tip.style.left = right ? `${place + 12}px` : "auto";
  tip.style.right = right ? "auto" : `${svg.clientWidth - place + 12}px`;
}

function sample(group) {
  const { color, dash, shape } = style(group);
  return `<svg width="30" height="12" viewBox="0 0 30 12" aria-hidden="true"><path d="M1 6H29" stroke="${color}" stroke-width="2" stroke-dasharray="${dash}"/><path fill="${color}" d="${shape(15, 6)}"/></svg>`;
}

/* Read the value so many rounds further on. */
function step(by) {
  const next = scene.rounds.indexOf(view.at) + by;
  read(scene.rounds[Math.min(scene.rounds.length - 1, Math.max(0, next))]);
}

/* Show so many times the rounds that are shown, around the one that is read. */
function zoom(times) {
  const { from, to, rounds } = scene, first = rounds[0], last = rounds.at(-1);
  const size = Math.max(2, Math.round((to - from) * times)), middle = view.at ?? (from + to) / 2;
  const start = Math.max(first, Math.min(last - size, Math.round(middle - size / 2)));
  view.zoom = size < last - first ? [start, start + size] : null;
  draw();
}

const KEYS = {
  ArrowLeft: () => step(-1),
  ArrowRight: () => step(1),
  "+": () => zoom(1 / 2),
  "-": () => zoom(2),
  0: () => zoom(Infinity),
  Escape: () => read(null),
};

function listen() {
  const redraw = (change) => (event) => { change(event.target); draw(); };
  byId("metric").addEventListener("change", redraw((chosen) => { view.metric = +chosen.value; }));
  byId("log").addEventListener("change", redraw((box) => { view.log = box.checked; }));
  byId("smooth").addEventListener("input", redraw((slider) => {
    view.window = +slider.value;
    byId("smoothed").textContent = view.window > 1 ? `mean of last ${view.window}` : "off";
  }));
  byId("unzoom").addEventListener("click", redraw(() => { view.zoom = null; }));
  const legend = byId("legend");
  legend.innerHTML = data.groups.map((name, group) => `<button type="button" aria-pressed="true" data-group="${group}">${sample(group)}<bdi>${escaped(name)}</bdi></button>`).join("");
  const press = (button, shown) => {
    button.setAttribute("aria-pressed", shown);
    if (shown) view.hidden.delete(+button.dataset.group); else view.hidden.add(+button.dataset.group);
  };
  for (const button of legend.children)
    button.addEventListener("click", redraw(() => press(button, view.hidden.has(+button.dataset.group))));
  for (const [id, shown] of [["all", true], ["none", false]])
    byId(id).addEventListener("click", redraw(() => { for (const button of legend.children) press(button, shown); }));

  const roundAt = (event) => {
    const inside = (event.clientX - svg.getBoundingClientRect().left) / svg.clientWidth * scene.width;
    const share = (inside - scene.box.left) / (scene.box.right - scene.box.left);
    return scene.from + Math.min(1, Math.max(0, share)) * (scene.to - scene.from);
  };
  const unbrush = () => svg.querySelector(".brush")?.setAttribute("width", 0);
  let start = null;
  svg.addEventListener("pointerdown", (event) => {
    if (!scene || event.button !== 0) return;
    start = roundAt(event);
    read(start);
  });
  svg.addEventListener("pointermove", (event) => {
    if (!scene) return;
    const here = roundAt(event);
    read(here);
    if (start === null) return;
    const [left, right] = [scene.x(Math.min(start, here)), scene.x(Math.max(start, here))];
    const brush = svg.querySelector(".brush");
    for (const [name, value] of Object.entries({ x: left, y: scene.box.top, width: right - left, height: scene.box.bottom - scene.box.top }))
      brush.setAttribute(name, value);
  });
  addEventListener("pointerup", (event) => {
    if (start === null || !scene) return;
    const [from, to] = [start, roundAt(event)].sort((a, b) => a - b);
    start = null;
    if (to - from >= Math.min(1, (scene.to - scene.from) / 4)) { view.zoom = [Math.floor(from), Math.ceil(to)]; draw(); }
    else unbrush();
  });
  addEventListener("pointercancel", () => { start = null; unbrush(); });  // the finger scrolls the page instead
  // A finger leaves whenever it is lifted; what it has shown is still to be read.
  svg.addEventListener("pointerleave", (event) => { if (start === null && event.pointerType !== "touch") read(null); });
  svg.addEventListener("dblclick", () => { view.zoom = null; draw(); });
  svg.addEventListener("keydown", (event) => {
    const pressed = KEYS[event.key];
    if (!scene || !pressed || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    pressed();
  });
  new ResizeObserver(draw).observe(svg.parentElement);
}

// ---- news of running runs ------------------------------------------------------------------------------------------

/* Show the states of runs, and announce them to screen readers when they change, not at every round. */
function announce(html) {
  const panel = document.querySelector("#state > .panel");
  const states = () => [...panel.querySelectorAll("li")].map((each) => each.className).join();
  const before = states();
  panel.innerHTML = html;
  if (states() !== before) byId("spoken").textContent = panel.textContent;
}

function take(news) {
  data.cursor = news.cursor;
  news.rows.forEach(({ from, rows }, index) => data.runs[index].rows = data.runs[index].rows.slice(0, from).concat(rows));
  const { state, ...others } = news.panels;
  if (state) announce(state);
  for (const [name, html] of Object.entries(others)) {
    const panel = document.querySelector(`#${name} > .panel`);
    const open = [...panel.querySelectorAll("details")].map((each) => each.open);
    panel.innerHTML = html;
    panel.querySelectorAll("details").forEach((each, index) => { if (index < open.length) each.open = open[index]; });
  }
  if (news.rows.some((each) => each.rows.length)) draw();
}

async function follow(address) {
  for (;;) {
    try {
      const reply = await fetch(`${address}?${new URLSearchParams({ cursor: data.cursor })}`, { cache: "no-store" });
      if (!reply.ok) throw new Error(reply.statusText);
      const news = await reply.json();
      if (news.reload) return location.reload();
      take(news);
    } catch {
      announce('<ul class="states"><li class="lost"><b>lost</b> fedskew watch does not answer; what is shown may be old</li></ul>');
      data.cursor = data.cursor.replace(/"state":\d+/, '"state":0');
      await new Promise((wake) => setTimeout(wake, 2000));
    }
  }
}

if (svg) { listen(); draw(); }
if (document.body.dataset.live) follow(document.body.dataset.live);
}
