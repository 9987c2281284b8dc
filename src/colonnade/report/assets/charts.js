"use strict";
// The look of a chart, in the report and on the live page: the page's colours, and less margin on a phone.
const Charts = (() => {
  const root = document.documentElement;
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

  function config() {
    return {
      responsive: true, displaylogo: false, displayModeBar: narrow() ? false : "hover",
      // plotly.js has a button that uploads the chart: nothing leaves this page.
      plotlyServerURL: "", modeBarButtonsToRemove: ["sendChartToCloud", "select2d", "lasso2d", "autoScale2d"],
    };
  }

  return { themed, layoutOf, config };
})();
