// Show each token at the time at which it arrived. Answers are inserted as text, never as HTML.
"use strict";
const race = JSON.parse(document.getElementById("race").textContent);
const find = (name) => document.getElementById(name);
const [button, slider, pace, clock] = ["play", "time", "pace", "clock"].map(find);
const lanes = race.lanes.map((lane, at) => {
  const box = find("lane-" + at), answer = box.querySelector(".answer");
  answer.textContent = "";
  const spans = lane.arrivals.map(([, pieces]) => pieces.map(([text, kind]) => {
    const span = document.createElement("span");
    span.className = "k" + kind;
    span.textContent = text;
    span.hidden = true;
    answer.append(span);
    return span;
  }));
  return { ...lane, box, spans, shown: 0, count: box.querySelector(".count"), bar: box.querySelector("progress") };
});
let passed = 0, last = null;

function draw() {
  clock.textContent = passed.toFixed(2) + " s";
  slider.value = String(race.end_s ? 1000 * passed / race.end_s : 1000);
  for (const lane of lanes) {
    let arrived = 0, tokens = 0;
    while (arrived < lane.arrivals.length && lane.arrivals[arrived][0] <= passed + 1e-9) {
      tokens += lane.arrivals[arrived][1].length;
      arrived += 1;
    }
    for (let at = Math.min(arrived, lane.shown); at < Math.max(arrived, lane.shown); at += 1) {
      for (const span of lane.spans[at]) span.hidden = at >= arrived;
    }
    lane.shown = arrived;
    const done = arrived === lane.arrivals.length, first = lane.arrivals[0][0];
    const spent = (done ? lane.arrivals[arrived - 1][0] : passed) - first;
    const speed = tokens > 1 && spent > 0 ? " · " + ((tokens - 1) / spent).toFixed(1) + " tok/s" : "";
    lane.count.textContent = tokens + " tokens · " + Math.max(0, arrived - 1) + " forwards" + speed;
    lane.bar.value = tokens;
    lane.box.classList.toggle("done", done);
  }
  button.textContent = last !== null ? "Pause" : passed >= race.end_s ? "Again" : "Play";
}

function step(now) {
  if (last === null) return;
  // The first frame may have begun before the button was pressed.
  passed = Math.min(race.end_s, passed + Math.max(0, now - last) / 1000 * Number(pace.value));
  last = passed < race.end_s ? now : null;
  draw();
  if (last !== null) requestAnimationFrame(step);
}

function start() {
  if (passed >= race.end_s) passed = 0;
  last = performance.now();
  draw();
  requestAnimationFrame(step);
}

button.addEventListener("click", () => {
  if (last === null) return start();
  last = null;
  draw();
});
slider.addEventListener("input", () => {
  last = null;
  passed = race.end_s * Number(slider.value) / 1000;
  draw();
});
find("controls").hidden = false;
// Who asked for less motion gets the end, and a button.
if (matchMedia("(prefers-reduced-motion: reduce)").matches) {
  passed = race.end_s;
  draw();
} else {
  start();
}
