// The frame of the page: tabs, choice of a run, theme, keyboard help, lost connection; opens the page of the URL.

import { Poller, get } from "./api.js";
import { emptyState, errorState, h, loading, replace } from "./dom.js";
import { openHelp, listen } from "./keyboard.js";
import { charts } from "./pages/charts.js";
import { config } from "./pages/config.js";
import { overview } from "./pages/overview.js";
import { problem } from "./pages/problem.js";
import { problems } from "./pages/problems.js";
import { rollout } from "./pages/rollout.js";
import { rollouts } from "./pages/rollouts.js";
import { timeline } from "./pages/timeline.js";
import { formatRoute, go, parseRoute } from "./router.js";
import { setUpTheme } from "./theme_switch.js";

const PAGES = { overview, charts, rollouts, rollout, problems, problem, timeline, config };
const TABS = [
  ["overview", "Overview"],
  ["charts", "Charts"],
  ["rollouts", "Rollouts"],
  ["problems", "Problems"],
  ["timeline", "Timeline"],
  ["config", "Config"],
];
const PARENTS = { rollout: "rollouts", problem: "problems" };

const main = document.getElementById("main");
const poller = new Poller();
const app = { poller, runs: [], run: null };
let current = null;
let keys = { page: "" }; // of the last page that opened; they stay while the next of its kind loads
let opening = 0;

/** Opens the page of the URL. A page is a function (root, params, app) -> {update?, keys?, close?, title?}. */
async function open() {
  const { page, params } = parseRoute();
  const turn = ++opening;
  if (current?.navigate && current.page === page && current.run === chooseRun(params)) {
    return current.navigate({ ...params, run: current.run }).catch((error) => turn === opening && fail(main, error));
  }
  current?.close?.();
  current = null;
  if (keys.page !== page) keys = { page };
  app.run = chooseRun(params);
  drawFrame(page);
  if (!app.runs.length) return replace(main, emptyState("No runs", "The server has no run to show."));
  const root = h("div", { class: "page" }, loading("the page"));
  replace(main, root);
  scrollTo(0, 0);
  if (!PAGES[page]) return replace(root, emptyState("No such page", h("a", { href: "#/" }, "Go to the overview")));
  try {
    const opened = await PAGES[page](root, { ...params, run: app.run }, app);
    if (turn !== opening) return opened?.close?.();
    current = { ...opened, page, run: app.run };
    keys = { ...opened?.keys, page };
    document.title = [current.title ?? titleOf(page), app.run, "dojang"].filter(Boolean).join(" · ");
  } catch (error) {
    if (turn === opening) fail(root, error);
  }
}

function fail(root, error) {
  replace(root, errorState(error));
  current = { failed: true };
  keys = { page: "" };
}

function titleOf(page) {
  return TABS.find(([name]) => name === page)?.[1] ?? page;
}

function chooseRun(params) {
  const wanted = params.run ?? params.runs?.split(",")[0] ?? app.run;
  return app.runs.some((each) => each.id === wanted) ? wanted : (app.runs[0]?.id ?? null);
}

function drawFrame(page) {
  const active = PARENTS[page] ?? page;
  const tabs = TABS.map(([name, label]) => {
    const params = name === "overview" ? {} : name === "charts" ? { runs: app.run } : { run: app.run };
    return h("a", { href: formatRoute(name, params), "aria-current": name === active && "page" }, label);
  });
  replace(document.getElementById("tabs"), tabs);
  document.querySelector("#tabs [aria-current]")?.scrollIntoView({ inline: "nearest", block: "nearest" });
  const choice = document.getElementById("run-choice");
  choice.parentElement.hidden = app.runs.length < 2 || page === "overview" || page === "charts";
  replace(
    choice,
    app.runs.map((run) => h("option", { value: run.id, selected: run.id === app.run }, run.name ?? run.id)),
  );
  drawLive();
}

function drawLive() {
  const live = app.runs.filter((run) => poller.runs?.[run.id]?.status === "running");
  const badge = document.getElementById("live");
  badge.classList.toggle("on", live.length > 0);
  const one = live.find((run) => run.id === app.run) ?? live[0];
  const state = one && poller.runs[one.id];
  replace(badge, one ? `live, step ${state.step ?? 0}${one.total_steps ? ` of ${one.total_steps}` : ""}` : "");
}

async function loadRuns() {
  app.runs = (await get("runs")).runs;
}

async function start() {
  setUpTheme(document.getElementById("theme"));
  document.getElementById("help").addEventListener("click", openHelp);
  document.getElementById("run-choice").addEventListener("change", (event) => {
    const { page } = parseRoute();
    go(PARENTS[page] ?? page, { run: event.target.value });
  });
  listen(() => keys);
  poller.addEventListener("connection", ({ detail }) => showConnection(detail));
  poller.addEventListener("state", drawLive);
  poller.addEventListener("change", ({ detail }) => hearChange(detail));
  window.addEventListener("hashchange", open);
  document.querySelector(".skip").addEventListener("click", (event) => {
    event.preventDefault(); // the hash is the route
    main.focus();
  });
  await startUp();
  poller.start();
}

async function startUp() {
  try {
    await loadRuns();
    await open();
  } catch (error) {
    fail(main, error);
  }
}

function showConnection({ connected }) {
  const banner = document.getElementById("connection");
  banner.hidden = connected;
  replace(banner, connected ? "" : "Connection lost: the server does not answer. Trying again every 2 seconds …");
  if (connected && (current?.failed || !app.runs.length)) startUp();
}

async function hearChange({ changed, before }) {
  const statusChanged = changed.some((run) => before[run]?.status !== poller.runs[run].status || !before[run]);
  if (statusChanged) await loadRuns().catch(() => {});
  current?.update?.({ changed, before, now: poller.runs });
}

start();
