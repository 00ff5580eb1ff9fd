// How every page starts: tabs that are made when they are first shown, and a word where it cannot start.

// pages: name -> what makes the section. Returns what shows one of them.
function showTabs(graph, pages) {
  const main = document.getElementById("main"), tabs = document.getElementById("tabs"), made = new Map();
  function show(name) {
    if (!made.has(name)) { made.set(name, pages[name]()); main.append(made.get(name)); }
    for (const [key, section] of made) section.hidden = key !== name;
    for (const tab of tabs.children) tab.setAttribute("aria-selected", tab.dataset.tab === name);
    if (name === "Graph") graph.start();
  }
  tabs.append(...Object.keys(pages).map((name) => el("button", { role: "tab", "data-tab": name, on: { click: () => show(name) } }, name)));
  main.replaceChildren();
  return show;
}

function startPage(start) {
  start().then(() => { document.documentElement.dataset.ready = Math.round(performance.now()); }).catch((error) => {
    document.getElementById("main").textContent = `This page could not be shown: ${error.message}. A browser of 2023 or later is needed.`;
    throw error;
  });
}
