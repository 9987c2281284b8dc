(async () => {
  const root = document.documentElement;
  const hidden = new Set();
  const charts = [...document.querySelectorAll(".chart")];

  // --- theme: what the system prefers, until the button says otherwise
  const system = matchMedia("(prefers-color-scheme: dark)");
  const button = document.getElementById("theme");

  function setTheme(dark) {
    root.dataset.theme = dark ? "dark" : "light";
    button.textContent = dark ? "Light" : "Dark";
    for (const chart of charts) if (chart.data) Plotly.relayout(chart, Charts.themed());
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
  for (const chart of charts) {
    const figure = data[chart.id];
    await Plotly.newPlot(chart, figure.data, Charts.layoutOf(figure), Charts.config());
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
