"use strict";
const samples = [...document.querySelectorAll("#samples li")];
let corrected = new Map();

function answer(sample, label) {
  sample.dataset.answer = label ? "wrong" : "right";
  sample.querySelector(".answer").textContent = label ? "→ " + label : "right";
  corrected.set(sample, label);
  const wrong = [...corrected.values()].filter(Boolean).length;
  document.getElementById("state").textContent =
    `${corrected.size} of ${samples.length} reviewed, ${wrong} corrected`;
}

function next(sample, step) {
  const other = samples[samples.indexOf(sample) + step];
  if (other) other.focus();
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.tagName === "SELECT") return;
  const sample = document.activeElement.closest("#samples li") || samples[0];
  if (!sample) return;
  const act = {
    ArrowRight: () => next(sample, 1), ArrowLeft: () => next(sample, -1),
    r: () => { answer(sample, ""); next(sample, 1); },
    w: () => { answer(sample, sample.dataset.suggested); next(sample, 1); },
    o: () => sample.querySelector("select").focus(),
  }[event.key];
  if (act) { event.preventDefault(); act(); }
});

for (const sample of samples) {
  sample.querySelector("select").addEventListener("change", (event) => {
    if (event.target.value) { answer(sample, event.target.value); sample.focus(); }
  });
}

function table() {
  const quoted = (text) => '"' + String(text).replaceAll('"', '""') + '"';
  const naming = samples.length ? Object.keys(JSON.parse(samples[0].dataset.key)) : [];
  const rows = [...corrected].map(([sample, label]) => [...Object.values(JSON.parse(sample.dataset.key)), label]);
  return [[...naming, "corrected"], ...rows].map((row) => row.map(quoted).join(",") + "\n").join("");
}

document.getElementById("save").addEventListener("click", () => {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([table()], { type: "text/csv" }));
  link.download = "corrections.csv";
  link.click();
});
