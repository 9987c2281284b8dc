(() => {
  const PAUSE_MS = 1000, REST_MS = 5000;
  const HEIGHTS = { metric: 280, loss: 280, staleness: 280, utilisation: 280 };
  const SAID = { joined: "is here", back: "is back", away: "is away:" }; // other events say it in their text
  const root = document.documentElement, drawn = new Map();
  const at = (id) => document.getElementById(id);
  let routine = false, latest = null;

  // --- theme: what the system prefers
  const system = matchMedia("(prefers-color-scheme: dark)");
  function setTheme() {
    root.dataset.theme = system.matches ? "dark" : "light";
    for (const id of drawn.keys()) Plotly.relayout(id, Charts.themed());
  }
  system.addEventListener("change", setTheme);
  setTheme();

  // --- texts: always set as text, never as HTML
  function part(tag, className, text) {
    const found = document.createElement(tag);
    if (className) found.className = className;
    if (text !== undefined) found.textContent = text;
    return found;
  }

  function setText(id, text) { if (at(id).textContent !== text) at(id).textContent = text; }

  function notice(text) {
    setText("trouble", text);
    at("trouble").hidden = !text;
  }

  function showState(state) {
    at("state").dataset.tone = state.tone;
    const word = at("state").querySelector("span");
    if (word.textContent !== state.word) word.textContent = state.word;
  }

  function showProgress(progress) {
    at("progress").hidden = false;
    at("progress").querySelector("i").style.width = `${100 * progress.fraction}%`;
    setText("done", progress.done);
    setText("left", progress.left);
  }

  function showTiles(tiles) {
    const place = at("tiles");
    while (place.children.length > tiles.length) place.lastChild.remove();
    tiles.forEach((tile, index) => {
      let box = place.children[index];
      if (!box) {
        box = place.appendChild(part("div"));
        box.append(part("span"), part("b"), part("small"));
      }
      const texts = [tile.label, tile.value, tile.note];
      texts.forEach((text, child) => { if (box.children[child].textContent !== text) box.children[child].textContent = text; });
    });
  }

  // --- parties
  const WIDTHS = ["6rem", "10rem", "7rem"]; // of staleness, bytes and ε, if there is any
  const STATES = ["busy", "transit", "waiting", "offline"];
  function line(party) {
    const row = part("li");
    row.dataset.name = party.name;
    const state = part("span", "state");
    state.append(part("i"), part("span"));
    const shares = part("span", "shares");
    for (const name of STATES) shares.append(part("i", name));
    row.append(part("span", "name", party.name), state, shares);
    for (const head of ["staleness", "up, down", "ε"]) {
      const cell = part("span", "number");
      cell.dataset.head = head;
      row.append(cell);
    }
    row.append(part("span", "debt"));
    return row;
  }

  function head() {
    const row = part("li", "head");
    for (const text of ["party", "state", "what it does now"]) row.append(part("span", "", text));
    for (const text of ["staleness", "up, down", "ε"]) row.append(part("span", "number", text));
    return row;
  }

  function showParties(parties, simulated, over) {
    at("roster").hidden = !parties.length;
    at("transit-key").hidden = !simulated;
    setText("waiting-key", simulated ? "waiting" : "waiting or in transit");
    const place = at("parties"), names = parties.map((party) => party.name).join("\n");
    if (place.dataset.names !== names) {
      place.replaceChildren(head(), ...parties.map(line));
      place.dataset.names = names;
    }
    parties.forEach((party, index) => {
      const row = place.children[index + 1], [, state, shares, age, bytes, spent, debt] = row.children;
      state.dataset.tone = party.tone;
      row.dataset.tone = party.tone;
      state.lastChild.textContent = party.state;
      state.firstChild.hidden = !party.state;
      STATES.forEach((name, child) => { shares.children[child].style.flexGrow = party.shares[name] || 0; });
      shares.title = STATES.filter((name) => party.shares[name]).map((name) => `${name} ${Math.round(100 * party.shares[name])} %`).join(", ");
      age.textContent = party.staleness === "–" ? "" : party.staleness;
      bytes.textContent = party.up ? `${party.up}, ${party.down}` : "";
      spent.textContent = party.epsilon;
      debt.textContent = party.owes;
      debt.hidden = !party.owes;
    });
    if (parties.length) place.firstChild.children[2].textContent = over ? "what it did at the end" : "what it does now";
    const rows = [...place.children];
    const used = WIDTHS.map((_, index) => rows.slice(1).some((row) => row.children[3 + index].textContent));
    for (const row of rows) used.forEach((is, index) => { row.children[3 + index].hidden = !is; });
    place.style.setProperty("--numbers", WIDTHS.filter((_, index) => used[index]).join(" ") || "0");
  }

  // --- events
  function showEvents(events) {
    const shown = events.filter((event) => routine || !["evaluation", "checkpoint"].includes(event.kind));
    at("happened").hidden = !events.length;
    at("no-events").hidden = shown.length > 0;
    const key = JSON.stringify(shown);
    if (at("events").dataset.key === key) return;
    at("events").dataset.key = key;
    at("events").replaceChildren(...shown.map((event) => {
      const row = part("li"), text = part("p"), time = part("time", "", event.clock);
      row.dataset.kind = event.kind;
      if (event.at) time.title = new Date(1000 * event.at).toLocaleString();
      if (event.who) text.append(part("b", "", event.who), " ");
      const said = SAID[event.kind] || "";
      text.append(["joined", "back"].includes(event.kind) ? said : `${said} ${event.text}`);
      row.append(part("i"), time, text);
      return row;
    }));
  }
  at("routine").onclick = () => {
    routine = !routine;
    at("routine").setAttribute("aria-pressed", String(routine));
    if (latest) showEvents(latest.events);
  };

  // --- charts: the report's figures, changed in place
  function layoutOf(id, figure) {
    const layout = Charts.layoutOf(figure);
    layout.uirevision = "keep"; // a zoom stays
    layout.font = { ...layout.font, family: "system-ui, sans-serif", size: 12 };
    layout.margin = { ...layout.margin, t: figure.layout.showlegend === false || !legendOf(figure) ? 12 : 40, b: 42 };
    if (HEIGHTS[id]) layout.height = HEIGHTS[id];
    if (id === "metric" || id === "loss") layout.yaxis.title = { text: "" };
    return layout;
  }

  function legendOf(figure) { return figure.data.filter((trace) => trace.name && trace.showlegend !== false).length > 0; }

  async function draw(figures) {
    const charts = [...document.querySelectorAll(".chart")];
    const before = charts.map((chart) => chart.offsetWidth);
    for (const chart of charts) chart.parentElement.hidden = !figures[chart.id];
    charts.forEach((chart, index) => { // a neighbour has come or gone
      if (drawn.has(chart.id) && chart.offsetWidth && chart.offsetWidth !== before[index]) Plotly.Plots.resize(chart);
    });
    for (const chart of charts) {
      const figure = figures[chart.id];
      if (!figure) continue;
      const key = JSON.stringify(figure);
      if (drawn.get(chart.id) === key) continue;
      await Plotly.react(chart, figure.data, layoutOf(chart.id, figure), Charts.config());
      drawn.set(chart.id, key);
    }
  }

  async function show(found) {
    latest = found;
    setText("name", found.name);
    document.title = found.state ? `${found.state.word} – ${found.name}` : found.name;
    if (found.trouble) {
      showState({ word: "not readable", tone: "bad" });
      return notice(found.trouble);
    }
    setText("about", found.about);
    notice(found.state.detail);
    showState(found.state);
    showProgress(found.progress);
    showTiles(found.tiles);
    const metric = found.tiles.length ? found.tiles[0].label : "metric";
    setText("metric-title", metric[0].toUpperCase() + metric.slice(1));
    const told = found.over ? "Blank: not known." : "Blank: not known yet. A party tells every few seconds how busy it was.";
    setText("lanes-note", found.simulated ? "" : told);
    showParties(found.parties, found.simulated, found.over);
    showEvents(found.events);
    await draw(found.figures);
    root.dataset.ready = "true";
  }

  async function look() {
    let pause = document.hidden ? REST_MS : PAUSE_MS;
    try {
      const answer = await fetch("/data", { cache: "no-store" });
      if (!answer.ok) throw new Error(answer.status === 403 ? "the token is missing" : `status ${answer.status}`);
      const found = await answer.json();
      await show(found);
      if (found.over) pause = REST_MS;
    } catch (error) {
      showState({ word: "no connection", tone: "bad" });
      notice(`This page gets no answer (${error.message}). Type colonnade watch again, and open the address that it prints.`);
    }
    setTimeout(look, pause);
  }
  document.addEventListener("visibilitychange", () => { if (!document.hidden && latest) show(latest); });
  look();
})();
