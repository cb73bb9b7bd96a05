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
const style = (group) => ({
  colour: `var(--c${group % 7})`,
  dash: DASHES[(group % 7 + Math.floor(group / 7)) % DASHES.length],
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

/* A group's mean and range over its runs, by round. */
function curve(group) {
  const runs = data.runs.filter((run) => run.group === group).map(points);
  const at = new Map();
  for (const run of runs) for (const [round, value] of run) {
    if (!at.has(round)) at.set(round, []);
    at.get(round).push(value);
  }
  return [...at].sort((a, b) => a[0] - b[0]).map(([round, values]) => {
    const finite = values.filter((value) => value !== null && !(view.log && value <= 0));
    if (!finite.length) return { round, mean: null };
    const mean = finite.reduce((sum, value) => sum + value, 0) / finite.length;
    return { round, mean, low: Math.min(...finite), high: Math.max(...finite), seeds: finite.length };
  });
}

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

function range(curves) {
  const rounds = curves.flatMap((each) => each.points.map((point) => point.round));
  const [from, to] = view.zoom || [Math.min(...rounds), Math.max(...rounds)];
  const shown = curves.flatMap((each) => each.points.filter((p) => p.mean !== null && p.round >= from && p.round <= to));
  let low = Math.min(...shown.map((point) => point.low)), high = Math.max(...shown.map((point) => point.high));
  if (!shown.length) [low, high] = view.log ? [0.1, 1] : [0, 1];
  if (low === high) [low, high] = view.log ? [low / 2, high * 2] : [low - Math.abs(low || 1) * .1, high + Math.abs(high || 1) * .1];
  const room = view.log ? 0 : (high - low) * .05;
  return { from, to: to > from ? to : from + 1, low: low - room, high: high + room };
}

function draw() {
  if (!svg) return;
  const curves = data.groups.map((name, group) => ({ name, group, points: view.hidden.has(group) ? [] : curve(group) }))
    .filter((each) => each.points.some((point) => point.mean !== null));
  const width = Math.max(280, svg.clientWidth || 800), height = width < 560 ? 300 : 400;
  const box = { left: 62, right: width - 14, top: 12, bottom: height - 38 };
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.style.aspectRatio = `${width} / ${height}`;
  byId("unzoom").disabled = !view.zoom;
  scene = null;
  if (!curves.length) {
    svg.innerHTML = `<text x="${width / 2}" y="${height / 2}" text-anchor="middle">${view.hidden.size ? "nothing to show: choose a method above" : "no number to show"}</text>`;
    return read(null);
  }
  const { from, to, low, high } = range(curves);
  const x = (round) => box.left + (round - from) / (to - from) * (box.right - box.left);
  const bend = view.log ? Math.log10 : (value) => value;
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
  scene = { curves, x, box, from, to, width };
  read(view.at);
}

function drawn({ name, group, points: all }, x, y) {
  const { colour, dash, shape } = style(group);
  const place = (round, value) => `${x(round).toFixed(1)} ${y(value).toFixed(1)}`;
  let line = "", open = false;
  for (const point of all) {
    if (point.mean === null) { open = false; continue; }
    line += (open ? "L" : "M") + place(point.round, point.mean);
    open = true;
  }
  const whole = all.filter((point) => point.mean !== null), every = Math.max(1, Math.ceil(whole.length / 12));
  const shapes = whole.filter((_, index) => whole.length < 25 || index % every === group % every)
    .map((point) => shape(+x(point.round).toFixed(1), +y(point.mean).toFixed(1))).join("");
  const band = whole.some((point) => point.seeds > 1)
    ? `<path class="band" fill="${colour}" d="M${whole.map((p) => place(p.round, p.high)).join("L")}L${[...whole].reverse().map((p) => place(p.round, p.low)).join("L")}Z"/>` : "";
  return `${band}<path class="line" data-group="${group}" stroke="${colour}" stroke-dasharray="${dash}" d="${line}"><title>${escaped(name)}</title></path><path fill="${colour}" d="${shapes}"/>`;
}

/* Show the values at the round nearest to one that was pointed at. */
function read(round) {
  const tip = byId("tip");
  view.at = round;
  tip.hidden = round === null || !scene;
  if (tip.hidden) { const cursor = svg.querySelector(".cursor"); if (cursor) cursor.setAttribute("d", ""); return; }
  const known = scene.curves.flatMap((each) => each.points.map((p) => p.round)).filter((r) => r >= scene.from && r <= scene.to);
  if (!known.length) { tip.hidden = true; return; }
  const at = known.reduce((best, each) => Math.abs(each - round) < Math.abs(best - round) ? each : best);
  view.at = at;
  const lines = scene.curves.map((each) => ({ ...each, point: each.points.find((point) => point.round === at) }))
    .filter((each) => each.point).sort((a, b) => (b.point.mean ?? -Infinity) - (a.point.mean ?? -Infinity));
  tip.innerHTML = `<b>round ${at}</b>${view.window > 1 ? `, ${byId("smoothed").textContent}` : ""}<table>` + lines.slice(0, 12).map(({ name, group, point }) =>
    `<tr><td>${sample(group)} ${escaped(name)}</td><td>${point.mean === null ? "not a number" : written(point.mean)}</td><td>${point.seeds > 1 ? `${written(point.low)} to ${written(point.high)}` : ""}</td></tr>`).join("")
    + `</table>${lines.length > 12 ? `and ${lines.length - 12} more` : ""}`;
  const place = scene.x(at) / scene.width * svg.clientWidth;
  svg.querySelector(".cursor").setAttribute("d", `M${scene.x(at)} ${scene.box.top}V${scene.box.bottom}`);
  const right = place < svg.clientWidth / 2;
  tip.style.left = right ? `${place + 12}px` : "auto";
  tip.style.right = right ? "auto" : `${svg.clientWidth - place + 12}px`;
}

function sample(group) {
  const { colour, dash, shape } = style(group);
  return `<svg width="30" height="12" viewBox="0 0 30 12" aria-hidden="true"><path d="M1 6H29" stroke="${colour}" stroke-width="2" stroke-dasharray="${dash}"/><path fill="${colour}" d="${shape(15, 6)}"/></svg>`;
}

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
  legend.innerHTML = data.groups.map((name, group) => `<button type="button" aria-pressed="true" data-group="${group}">${sample(group)}${escaped(name)}</button>`).join("");
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
  let start = null;
  svg.addEventListener("pointerdown", (event) => { if (scene && event.button === 0) start = roundAt(event); });
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
    else svg.querySelector(".brush").setAttribute("width", 0);
  });
  svg.addEventListener("pointerleave", () => { if (start === null) read(null); });
  svg.addEventListener("dblclick", () => { view.zoom = null; draw(); });
  svg.addEventListener("keydown", (event) => {
    if (!scene || !["ArrowLeft", "ArrowRight", "Escape"].includes(event.key)) return;
    event.preventDefault();
    if (event.key === "Escape") return read(null);
    const rounds = [...new Set(scene.curves.flatMap((each) => each.points.map((p) => p.round)))].sort((a, b) => a - b);
    const next = rounds.indexOf(view.at) + (event.key === "ArrowRight" ? 1 : -1);
    read(rounds[Math.min(rounds.length - 1, Math.max(0, next))]);
  });
  new ResizeObserver(draw).observe(svg.parentElement);
}

// ---- news of runs that are going ------------------------------------------------------------------------------------

function take(news) {
  data.cursor = news.cursor;
  news.rows.forEach(({ from, rows }, index) => data.runs[index].rows.splice(from, Infinity, ...rows));
  for (const [name, html] of Object.entries(news.panels)) {
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
      document.querySelector("#state > .panel").innerHTML = '<ul class="states"><li class="lost"><b>lost</b> fedskew watch does not answer; what is shown may be old</li></ul>';
      data.cursor = data.cursor.replace(/"state":\d+/, '"state":0');
      await new Promise((wake) => setTimeout(wake, 2000));
    }
  }
}

if (svg) { listen(); draw(); }
if (document.body.dataset.live) follow(document.body.dataset.live);
}
