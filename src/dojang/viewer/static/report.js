// Replaces the drawings of a report by charts with values under the pointer, zoom and smoothing.

function startReport() {
  const all = JSON.parse(document.getElementById("data").textContent);
  const charts = [...document.querySelectorAll("[data-chart]")].map((host) => {
    const { title, unit, series } = all[Number(host.dataset.chart)];
    const chart = new Chart(host, { label: title, unit });
    chart.set({ series });
    return chart;
  });
  const value = h("output", {}, "0.00");
  const slider = h("input", { type: "range", min: "0", max: "0.99", step: "0.01", value: "0" });
  slider.addEventListener("input", () => {
    replace(value, Number(slider.value).toFixed(2));
    for (const chart of charts) chart.set({ smoothing: Number(slider.value) });
  });
  const label = h("label", { class: "field" }, "Smoothing", slider, value);
  if (charts.length)
    document.querySelector(".charts").before(h("p", { class: "note" }, label, "  Drag in a chart to zoom."));
}

startReport();
