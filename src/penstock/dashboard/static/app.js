// The page's own script: times, keys, dialogs, toasts, live numbers, charts. No build, no inline code.
const $ = (selector, root = document) => root.querySelector(selector);
const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];
const root = document.documentElement.dataset.root;
const body = document.body;

// Numbers and times, as the server writes them

const integer = new Intl.NumberFormat("en-US");
const number = (value, estimate) => (value == null ? "–" : (estimate && value ? "~" : "") + integer.format(value));
function rate(value) {
  if (value == null) return "–";
  if (value === 0) return "0";
  if (value < 0.095) return value < 0.005 ? "<0.01" : value.toFixed(2);
  return value < 99.95 ? value.toFixed(1) : integer.format(Math.round(value));
}
const UNITS = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
function age(seconds) {
  if (seconds < 0.9995) return `${Math.max(0, Math.round(seconds * 1000))} ms`;
  const whole = Math.max(1, Math.floor(seconds));
  for (let i = 0; i < 3; i++) {
    const [unit, size] = UNITS[i];
    if (whole >= size) {
      const rest = Math.floor((whole % size) / UNITS[i + 1][1]);
      return `${Math.floor(whole / size)} ${unit}` + (rest ? ` ${rest} ${UNITS[i + 1][0]}` : "");
    }
  }
  return `${whole} s`;
}
const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const day = new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", second: "2-digit" });
const full = new Intl.DateTimeFormat(undefined, { dateStyle: "full", timeStyle: "long" });
// How far the clock of this machine is behind the server's.
let skew = Number(document.documentElement.dataset.now) - Date.now();
if (Math.abs(skew) < 5000) skew = 0;
function times(within = document) {
  const now = Date.now() + skew;
  for (const each of $$("time[data-time]", within)) {
    const at = new Date(each.dateTime);
    if (each.dataset.time !== "when") {
      const ahead = (at - now) / 1000;
      const text = ahead > 0 ? `in ${age(ahead)}` : age(-ahead) + (each.dataset.time === "ago" ? " ago" : "");
      if (each.textContent !== text) each.textContent = text;
    } else if (!each.dataset.done) {
      each.textContent = (Math.abs(now - at) < 43200e3 ? clock : day).format(at);
    }
    if (!each.dataset.done) {
      each.title = `${full.format(at)}\n${each.title}`;
      each.dataset.done = "1";
    }
  }
}
setInterval(times, 1000);

// Toasts

function toast(message, status = "ok") {
  const box = document.createElement("div");
  box.className = `toast ${status}`;
  box.textContent = message;
  $("#toasts").append(box);
  setTimeout(() => box.remove(), status === "problem" ? 12000 : 6000);
}
body.addEventListener("penstock:toast", ({ detail }) => {
  $$("dialog[open]").forEach((dialog) => dialog.close());
  if (detail.go) {
    sessionStorage.setItem("penstock.toast", JSON.stringify(detail));
    location.assign(detail.go);
    return;
  }
  toast(detail.message, detail.status);
  if (detail.status !== "problem") refresh(true);
});
body.addEventListener("htmx:error", ({ detail }) => {
  if (detail.ctx?.request?.method === "POST") toast("The server does not answer. Nothing was done, or it is not known.", "problem");
});
const left = sessionStorage.getItem("penstock.toast");
if (left) {
  sessionStorage.removeItem("penstock.toast");
  const { message, status } = JSON.parse(left);
  toast(message, status);
}

// Pages fetch themselves anew, where no one is in the middle of something

let refreshedAt = Date.now();
function refresh(now = false) {
  const main = $("#main");
  const every = Number(main?.dataset.refresh || 0) * 1000;
  if (!main?.hasAttribute("hx-get") || document.hidden || $("dialog[open]")) return;
  if (!now) {
    if (!every || Date.now() - refreshedAt < every || !getSelection().isCollapsed || $("#main :checked[name='id']")) return;
    if (document.activeElement?.matches("#main input, #main textarea, #main select")) return;
  }
  refreshedAt = Date.now();
  htmx.trigger(body, "penstock:refresh");
}
body.addEventListener("htmx:after:swap", () => { times(); charts(); });

// Live numbers

const FORMATS = { in_rate: rate, out_rate: rate, failed_rate: rate, active: number, queues: number };
function put(cell, name, value, estimate) {
  if (name === "oldest_at") {
    cell.innerHTML = "";
    if (value == null) { cell.textContent = "–"; return; }
    const time = document.createElement("time");
    time.dateTime = value;
    time.dataset.time = "since";
    time.title = value;
    cell.append(time);
    times(cell);
    return;
  }
  if (name === "paused") { cell.hidden = !value; return; }
  const text = (FORMATS[name] || ((each) => number(each, estimate)))(value);
  if (cell.textContent === text) return;
  cell.textContent = text;
  cell.classList.toggle("zero", !value);
  if (name === "dead") cell.classList.toggle("bad", value > 0);
}
function tick(told) {
  for (const cell of $$("[data-total]")) put(cell, cell.dataset.total, told.totals[cell.dataset.total], told.totals.is_estimate);
  if (told.queues) {
    for (const row of $$("[data-queue]")) {
      const changed = told.queues[row.dataset.queue];
      if (!changed) continue;
      if ("is_estimate" in changed) row.dataset.estimate = changed.is_estimate || "";
      for (const cell of $$("[data-field]", row)) {
        if (cell.dataset.field in changed) put(cell, cell.dataset.field, changed[cell.dataset.field], row.dataset.estimate);
      }
    }
  }
  body.dispatchEvent(new CustomEvent("penstock:tick", { detail: told }));
  refresh(Boolean(told.changed));
}
function state(name, title) {
  const mark = $("#live");
  if (!mark) return;
  mark.dataset.state = name;
  $("span", mark).textContent = title;
}
body.addEventListener("tick", ({ detail }) => { state("on", "live"); tick(JSON.parse(detail.data)); });
body.addEventListener("htmx:sse:after:connection", () => state("on", "live"));
body.addEventListener("htmx:sse:error", () => state("off", "reconnecting"));
body.addEventListener("htmx:sse:close", () => state("off", "not live"));
addEventListener("visibilitychange", () => { if (!document.hidden) { times(); refresh(); } });

// Charts: [data-chart] names a JSON block with {at: [...], series: [{label, values, color}], bands: [...]}

const drawn = new Map();
const cssColor = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const FORMS = { number: (value) => number(value == null ? null : Math.round(value)), rate, seconds: (value) => (value == null ? "–" : age(value)) };
const short = new Intl.NumberFormat("en-US", { notation: "compact", maximumFractionDigits: 1 });
const AXES = { number: short.format, rate: (value) => (value < 10 ? String(Number(value.toFixed(3))) : short.format(value)), seconds: (value) => (value ? age(value) : "0") };
// Steps of an axis: a label is never rounded.
const decimal = (from) => Array.from({ length: 12 }, (_, power) => [1, 2, 5].map((each) => each * from * 10 ** power)).flat();
const STEPS = { number: decimal(1), rate: decimal(0.001), seconds: [...decimal(0.001).slice(0, 9), 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 21600, 43200, ...decimal(86400)] };
const hour = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit" });
const date = new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric" });
// The legend has the newest values while the pointer is elsewhere.
const newest = (u) => { if (u.cursor.idx == null) u.setLegend({ idx: u.data[0].length - 1 }); };
function charts() {
  if (!window.uPlot) return;
  for (const [element, plot] of drawn) if (!element.isConnected) { plot.destroy(); drawn.delete(element); }
  for (const element of $$("[data-chart]")) {
    const source = document.getElementById(element.dataset.chart);
    if (!source || drawn.get(element)?.source === source.textContent) continue;
    const data = JSON.parse(source.textContent);
    const columns = [data.at, ...data.series.map((each) => each.values)];
    const old = drawn.get(element);
    if (old) {
      old.source = source.textContent;
      old.bandsOf = data.bands || [];
      old.setData(columns);
      continue;
    }
    const unit = data.unit || "number";
    const form = FORMS[unit];
    const axis = { stroke: () => cssColor("--muted"), grid: { stroke: () => cssColor("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui" };
    const plot = new uPlot({
      width: element.clientWidth || 400, height: 190,
      cursor: { sync: { key: "penstock" }, points: { size: 6 } },
      legend: { live: true },
      scales: { y: { range: (_, low, high) => [0, Math.max(high || 0, data.unit === "seconds" ? 0.01 : 1) * 1.08] } },
      padding: [8, 28, 0, 0],
      axes: [{ ...axis, space: 70, size: 28, values: (_, splits, __, ___, step) => splits.map((at) => (step < 86400 ? hour : date).format(at * 1000)) }, { ...axis, size: 62, incrs: STEPS[unit], values: (_, splits) => splits.map((each) => AXES[unit](each)) }],
      series: [{ value: (_, at) => (at == null ? "–" : day.format(new Date(at * 1000))) }, ...data.series.map((each) => ({
        label: each.label, stroke: () => cssColor(`--${each.color}`), width: 1.6, value: (_, value) => form(value),
        dash: each.dash, fill: each.fill ? () => cssColor(`--${each.color}`) + "1e" : undefined, points: { show: each.values.filter((value) => value != null).length < 3, size: 5 }, spanGaps: false,
      }))],
      hooks: { drawClear: [(u) => bands(u, drawn.get(element)?.bandsOf || data.bands || [])], ready: [newest], setCursor: [newest], setData: [newest] },
    }, columns, element);
    plot.source = source.textContent;
    drawn.set(element, plot);
    new ResizeObserver(() => plot.setSize({ width: element.clientWidth, height: 190 })).observe(element);
  }
}
function bands(u, periods) {
  u.ctx.save();
  const height = u.bbox.height / periods.length;
  periods.forEach(([from, to, kind], place) => {
    u.ctx.fillStyle = cssColor(`--band-${kind}`);
    const start = Math.max(u.bbox.left, u.valToPos(from, "x", true));
    const end = Math.min(u.bbox.left + u.bbox.width, u.valToPos(to, "x", true));
    if (end > start) u.ctx.fillRect(start, u.bbox.top + place * height, Math.max(2, end - start), height);
  });
  u.ctx.restore();
}
const recolour = () => drawn.forEach((plot) => plot.redraw());
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", recolour);

// Theme

function theme() {
  const html = document.documentElement;
  const next = { "": "dark", dark: "light", light: "" }[html.dataset.theme || ""];
  html.dataset.theme = next;
  document.cookie = `penstock_theme=${next}; path=${root || "/"}; max-age=31536000; samesite=strict`;
  toast(next ? `Theme: ${next}` : "Theme: as the system has it");
  recolour();
}

// Clicks

document.addEventListener("click", (event) => {
  const target = event.target.closest("[data-open],[data-close],[data-theme-switch],[data-copy]");
  if (!target) {
    if (event.target.matches("dialog")) event.target.close();
    return;
  }
  if (target.dataset.open) document.getElementById(target.dataset.open)?.showModal();
  else if ("close" in target.dataset) target.closest("dialog").close();
  else if ("themeSwitch" in target.dataset) theme();
  else if ("copy" in target.dataset) {
    const text = target.dataset.copy || target.closest(".command").querySelector("code").textContent;
    navigator.clipboard.writeText(text).then(() => toast("Copied."), () => toast("The browser did not allow copying.", "problem"));
  }
});

// Lists with boxes to tick: a bar shows how many are chosen

document.addEventListener("change", (event) => {
  const list = event.target.closest("[data-selectable]");
  if (event.target.matches("[data-check-all]")) $$("input[name='id']", list).forEach((box) => { box.checked = event.target.checked; });
  if (list) {
    const chosen = $$("input[name='id']:checked", list).length;
    const bar = $("[data-selection]", list);
    if (bar) {
      bar.hidden = !chosen;
      $$("[data-chosen]", list).forEach((each) => { each.textContent = number(chosen); });
    }
  }
  if (event.target.matches("[data-initial]")) event.target.closest(".field").classList.toggle("changed", event.target.value !== event.target.dataset.initial);
  if (event.target.matches("select[data-submit]")) event.target.form.requestSubmit();
});

// Keys

let leader = 0;
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, textarea, select")) return;
  if (event.key === "?") $("#keys").showModal();
  else if ($("dialog[open]")) return;
  else if (Date.now() - leader < 1500) {
    leader = 0;
    $(`a[data-key="${CSS.escape(event.key)}"]`)?.click();
  } else if (event.key === "g") leader = Date.now();
  else if (event.key === "/") { $("[data-filter]")?.focus(); event.preventDefault(); }
  else if (event.key === "t") theme();
  else if (event.key === "r") refresh(true);
  else if (event.key === "j" || event.key === "k") {
    const links = $$("#main tbody tr").map((row) => $("a", row)).filter(Boolean);
    const at = links.indexOf(document.activeElement);
    links[event.key === "j" ? Math.min(at + 1, links.length - 1) : Math.max(at - 1, 0)]?.focus();
  }
});

times();
charts();
