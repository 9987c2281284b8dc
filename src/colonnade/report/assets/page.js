"use strict";
(async () => {
  const root = document.documentElement;
  const hidden = new Set();
  const charts = [...document.querySelectorAll(".chart")];

  // --- theme: what the system prefers, until the button says otherwise
  const system = matchMedia("(prefers-color-scheme: dark)");
  const button = document.getElementById("theme");
  const colour = (name) => getComputedStyle(root).getPropertyValue(name).trim();

  function themed() {
    const ink = colour("--ink"), line = colour("--line"), raised = colour("--raised");
    const changes = {
      "font.color": ink, "paper_bgcolor": "rgba(0,0,0,0)", "plot_bgcolor": "rgba(0,0,0,0)",
      "modebar.bgcolor": "rgba(0,0,0,0)", "modebar.color": line, "modebar.activecolor": ink,
      "hoverlabel.bgcolor": raised, "hoverlabel.font.color": ink, "hoverlabel.bordercolor": line,
    };
    for (const axis of ["xaxis", "yaxis"]) {
      changes[`${axis}.gridcolor`] = changes[`${axis}.zerolinecolor`] = changes[`${axis}.linecolor`] = line;
    }
    return changes;
  }

  function setTheme(dark) {
    root.dataset.theme = dark ? "dark" : "light";
    button.textContent = dark ? "Light" : "Dark";
    for (const chart of charts) if (chart.data) Plotly.relayout(chart, themed());
  }

  button.onclick = () => setTheme(root.dataset.theme !== "dark");
  system.addEventListener("change", (event) => setTheme(event.matches));
  setTheme(system.matches);

  // --- plotly.js and the figures travel compressed inside the page
  async function unpack(id) {
    const bytes = Uint8Array.from(atob(document.getElementById(id).textContent), (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(stream).text();
  }

  const data = JSON.parse(await unpack("figures"));
  const script = document.createElement("script");
  script.textContent = await unpack("plotly");
  document.head.append(script);

  // --- charts
  function narrow() { return innerWidth < 600; }

  function layoutOf(figure) {
    const layout = structuredClone(figure.layout);
    layout.autosize = true;
    if (narrow()) layout.margin = { ...layout.margin, l: 45, r: 8 };
    for (const [path, value] of Object.entries(themed())) {
      const keys = path.split("."), last = keys.pop();
      let place = layout;
      for (const key of keys) place = place[key] ??= {};
      place[last] = value;
    }
    return layout;
  }

  const config = {
    responsive: true, displaylogo: false, displayModeBar: narrow() ? false : "hover",
    // plotly.js has a button that uploads the chart: nothing leaves this page.
    plotlyServerURL: "", modeBarButtonsToRemove: ["sendChartToCloud", "select2d", "lasso2d", "autoScale2d"],
  };
  for (const chart of charts) {
    const figure = data[chart.id];
    await Plotly.newPlot(chart, figure.data, layoutOf(figure), config);
  }

  // --- a logarithmic x axis for the curves, where methods differ by orders of magnitude
  const logarithmic = document.getElementById("logarithmic");
  logarithmic.onclick = () => {
    const on = logarithmic.getAttribute("aria-pressed") !== "true";
    logarithmic.setAttribute("aria-pressed", String(on));
    for (const chart of charts) {
      if (!chart.id.startsWith("value-") && !chart.id.startsWith("loss-")) continue;
      Plotly.relayout(chart, { "xaxis.type": on ? "log" : "linear", "xaxis.autorange": true });
    }
  };

  // --- one legend for all charts
  function show() {
    for (const chart of charts) {
      const labelled = chart.data.map((trace, index) => [trace.legendgroup, index]).filter(([label]) => label);
      if (!labelled.length) continue;
      Plotly.restyle(chart, { visible: labelled.map(([label]) => !hidden.has(label)) }, labelled.map(([, index]) => index));
    }
    for (const part of document.querySelectorAll("[data-label]")) part.hidden = hidden.has(part.dataset.label);
    for (const chart of charts) if (chart.offsetParent) Plotly.Plots.resize(chart);
  }

  for (const entry of document.querySelectorAll("#legend button[value]")) {
    entry.onclick = () => {
      const label = entry.value;
      if (!hidden.delete(label)) hidden.add(label);
      entry.setAttribute("aria-pressed", String(!hidden.has(label)));
      show();
    };
  }
  root.dataset.ready = "true";
})().catch((error) => {
  document.getElementById("trouble").textContent = `The charts could not be drawn: ${error}`;
  throw error;
});
