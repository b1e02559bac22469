// Without this script every page shows all there is, with times in UTC, and nothing renews itself.
"use strict";

// --- Says when a living part is alive no more: htmx leaves the old content there in silence, which then looks like now.
const sign = () => document.getElementById("offline");
for (const trouble of ["htmx:sendError", "htmx:responseError", "htmx:timeout"]) {
  document.addEventListener(trouble, () => { sign().hidden = false; });
}

// --- Times: how long ago, by the server's clock, and when, in the reader's zone.
const began = performance.now();
const now = () => Number(document.documentElement.dataset.now) + performance.now() - began;
const two = number => String(number).padStart(2, "0");
const UNITS = [[86400, "d"], [3600, "h"], [60, "m"], [1, "s"]];

function length(seconds) { // as text.length does
  const first = UNITS.findIndex(([size]) => seconds >= size);
  if (first < 0) return "0s";
  const [size, name] = UNITS[first], next = UNITS[first + 1];
  const rest = next && seconds < 864000 ? Math.floor(seconds % size / next[0]) : 0;
  return Math.floor(seconds / size) + name + (rest ? rest + next[1] : "");
}
function relative(at, due) {
  const left = Math.floor((at - now()) / 1000), gone = Math.floor((now() - at) / 1000);
  if (!due) return `${length(Math.max(0, gone))} ago`;
  return left >= 1 ? `due in ${length(left)}` : gone < 1 ? "due now" : `overdue by ${length(gone)}`;
}
function absolute(at, today) {
  const day = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
  const clock = `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
  return today && at.toDateString() === new Date(now()).toDateString() ? clock : `${day} ${clock}`;
}
function tick() {
  for (const one of document.querySelectorAll("time[datetime]")) {
    one.querySelector(".rel").textContent = relative(Date.parse(one.dateTime), "due" in one.dataset);
  }
}
function localise() {
  for (const one of document.querySelectorAll("time[datetime]:not([title])")) {
    const at = new Date(one.dateTime);
    one.title = `${one.dateTime}, here ${absolute(at)}`;
    one.querySelector(".abs").textContent = absolute(at, true);
  }
  for (const one of document.querySelectorAll("[data-at]:not([data-at=''])")) {
    const at = absolute(new Date(one.dataset.at));
    one.textContent = one.textContent.replace(/(\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d( UTC)?$/, (_, day) => day ? at : at.slice(11));
    one.dataset.at = "";
  }
  for (const one of document.querySelectorAll(".zone")) one.textContent = "local";
}
const zone = document.getElementById("zone");
if (zone) zone.textContent = `All times are in your zone, ${Intl.DateTimeFormat().resolvedOptions().timeZone}.`;
localise();
setInterval(tick, 5000);
document.addEventListener("htmx:afterSwap", () => { sign().hidden = true; localise(); });
document.addEventListener("htmx:oobAfterSwap", localise);

// --- The list of dead letters: ticking one means that the action is for the ticked ones.
const pick = document.getElementById("pick"), every = document.getElementById("every");
if (pick && every) {
  const all = every.querySelector("input"), boxes = [...pick.querySelectorAll("input[name=place]")];
  const count = () => {
    const ticked = boxes.filter(box => box.checked).length;
    pick.querySelector(`input[name=scope][value=${ticked ? "picked" : "all"}]`).checked = true;
    document.getElementById("picked").textContent = ticked ? `the ${ticked} ticked` : "the ticked ones";
    all.checked = ticked > 0 && ticked === boxes.length;
    all.indeterminate = ticked > 0 && ticked < boxes.length;
  };
  every.hidden = false;
  all.addEventListener("change", () => { for (const box of boxes) box.checked = all.checked; count(); });
  for (const box of boxes) box.addEventListener("change", count);
  count(); // a browser that goes back restores the ticks
}
