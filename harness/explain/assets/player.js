/* Replays traces: which story, mode and step; keys, play, the address. Nothing is computed here. */

const DATA = JSON.parse(document.getElementById("traces").textContent);
const BOTH = "all";
const byId = (id) => document.getElementById(id);
const calm = matchMedia("(prefers-reduced-motion: reduce)");
const here = { story: DATA.stories[0], mode: "", at: 0 };
let timer = 0;

function h(tag, attributes, children) {
  return built(document.createElement(tag), attributes, children);
}

function s(tag, attributes, children) {
  return built(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function built(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) element.setAttribute(name, value);
  const list = [children].flat(2).filter((child) => child !== null && child !== undefined);
  element.append(...list.map((child) => (child instanceof Node ? child : String(child))));
  return element;
}

/* Each step holds only what differs from the one before. */
function unfold(lane) {
  let state = {};
  let log = [];
  lane.states = lane.steps.map((step) => (state = { ...state, ...step.d }));
  lane.logs = lane.steps.map((step) => (log = [...log, ...step.g]));
  const error = log.find((entry) => entry[0] === "error");
  lane.death = error ? error[1] : "";
}

const lanesShown = () => here.story.lanes.filter((lane) => here.mode === BOTH || lane.id === here.mode);
const laneIndex = (lane) => here.story.lanes.indexOf(lane);
const stepOf = (lane) => (here.mode === BOTH ? here.story.frames[here.at][laneIndex(lane)] : here.at);
const length = () => (here.mode === BOTH ? here.story.frames.length : lanesShown()[0].steps.length);

function draw(previous) {
  const old = flipRects();
  const lanes = lanesShown();
  byId("stage").dataset.lanes = lanes.length;
  byId("stage").replaceChildren(...lanes.map((lane) => drawLane(lane, previous)));
  flip(old);
  document.querySelectorAll(".code details[open] pre").forEach(showLit);
  drawControls(lanes);
}

function drawLane(lane, previous) {
  const n = stepOf(lane);
  const stands = here.mode === BOTH && previous !== undefined && here.at > 0 &&
    here.story.frames[here.at - 1][laneIndex(lane)] === n;
  const shown = stands ? { ...lane.steps[n], c: [], quiet: true } : lane.steps[n];
  const state = lane.states[n];
  const picture = lane.life ? lifePicture(state, shown, lane)
    : poolPicture(state, stands ? null : lane.states[n - 1], shown);
  return h("article", { class: state.alive === false ? "lane dead" : "lane", "data-lane": lane.id, "data-step": n, "aria-label": lane.label }, [
    caption(lane, shown, state),
    picture,
    h("div", { class: "beside" }, [changesSection(shown, n), lane.life ? replySection(state) : codeSection(shown), logSection(lane, n, stands)]),
  ]);
}

function caption(lane, step, state) {
  const isCall = step.w.startsWith("POST ");
  return h("div", { class: "caption" }, [
    h("p", { class: "lane-name" }, lane.label),
    h("p", { class: "scene" }, isCall ? [h("code", {}, step.w)] : step.w),
    h("p", { class: "why" }, step.y),
    state.alive === false ? h("p", { class: "death" }, `The engine is dead: ${lane.death}`) : null,
  ]);
}

function changesSection(step, n) {
  const none = n === 0 ? "The opening state." : step.quiet ? "Nothing: it waits for the other mode." : "Nothing in the pool.";
  const items = step.c.length ? step.c.map((change) => h("li", {}, change[0])) : [h("li", {}, none)];
  return h("section", {}, [h("h3", {}, ["What changed"]), h("ul", { class: "changes" }, items)]);
}

function codeSection(step) {
  const parts = step.l.map(([name, lines], index) => codeOf(name, lines, index === 0));
  const first = parts.splice(0, 3);
  const body = first.length ? first : [h("p", { class: "empty" }, "The lines that run will be lit here.")];
  if (parts.length) {
    const more = parts.length === 1 ? "1 more function ran" : `${parts.length} more functions ran`;
    body.push(h("details", { class: "more" }, [h("summary", {}, more), ...parts]));
  }
  return h("section", { class: "code" }, [h("h3", {}, ["Code that ran", h("span", {}, "of the teaching model")]), ...body]);
}

function codeOf(name, lines, open) {
  const pre = byId(`source-${name}`).content.firstElementChild.cloneNode(true);
  pre.querySelectorAll("[data-line]").forEach((line) => {
    if (lines.includes(Number(line.dataset.line))) line.classList.add("lit");
  });
  built(pre, { tabindex: "0", role: "group", "aria-label": `Code of ${name}` });
  const details = h("details", { "data-function": name }, [h("summary", {}, name), pre]);
  details.open = open;
  details.addEventListener("toggle", () => showLit(pre));
  return details;
}

/* Scrolls only the panel itself, so that the page stays where the reader put it. */
function showLit(pre) {
  const lit = pre.querySelectorAll(".lit");
  if (!lit.length) return;
  const first = lit[0].offsetTop - pre.offsetTop;
  const last = lit[lit.length - 1].offsetTop + lit[lit.length - 1].offsetHeight - pre.offsetTop;
  pre.scrollTop = Math.max(0, Math.min(first - 24, (first + last - pre.clientHeight) / 2));
}

function replySection(state) {
  return h("section", {}, [h("h3", {}, ["What the server said"]), h("pre", { class: "reply" }, state.reply || "nothing yet")]);
}

function logSection(lane, n, stands) {
  const entries = lane.logs[n];
  const fresh = stands ? 0 : lane.steps[n].g.length;
  const items = entries.slice(-8).map(([kind, text], index, shown) =>
    h("li", { class: `${kind}${index >= shown.length - fresh ? " fresh" : ""}` }, text));
  const body = items.length ? items : [h("li", {}, "nothing so far")];
  return h("section", { class: "log" }, [h("h3", {}, ["Log and events"]), h("ol", {}, body)]);
}

function drawControls(lanes) {
  const last = length() - 1;
  byId("position").textContent = `Step ${here.at} of ${last}`;
  byId("step").max = last;
  byId("step").value = here.at;
  byId("step").setAttribute("aria-valuetext", `Step ${here.at} of ${last}`);
  byId("first").disabled = byId("back").disabled = here.at === 0;
  byId("next").disabled = byId("last").disabled = here.at === last;
  const spoken = lanes.map((lane) => {
    const step = lane.steps[stepOf(lane)];
    const name = lanes.length > 1 ? `${lane.label}: ` : "";
    return `${name}${step.w}. ${step.y} ${step.c.map((change) => change[0]).join(" ")}`;
  });
  byId("words").textContent = spoken.join(" ");
}

function flipRects() {
  const rects = new Map();
  if (calm.matches) return rects;
  document.querySelectorAll("[data-flip]").forEach((element) => {
    const lane = element.closest("[data-lane]").dataset.lane;
    rects.set(`${lane} ${element.dataset.flip}`, element.getBoundingClientRect());
  });
  return rects;
}

function flip(old) {
  if (!old.size) return;
  document.querySelectorAll("[data-flip]").forEach((element) => {
    const from = old.get(`${element.closest("[data-lane]").dataset.lane} ${element.dataset.flip}`);
    const to = element.getBoundingClientRect();
    if (!from) {
      element.animate([{ opacity: 0, transform: "scale(.6)" }, {}], { duration: 350, easing: "ease-out" });
    } else if (from.x !== to.x || from.y !== to.y) {
      const start = { transform: `translate(${from.x - to.x}px, ${from.y - to.y}px)` };
      element.animate([start, { transform: "none" }], { duration: 450, easing: "cubic-bezier(.2,.7,.2,1)" });
    }
  });
}

function drawStory() {
  const { story } = here;
  byId("story-title").textContent = story.title;
  byId("story-lead").textContent = story.lead;
  document.querySelectorAll("#stories button").forEach((button) => {
    if (button.value === story.id) button.setAttribute("aria-current", "page");
    else button.removeAttribute("aria-current");
  });
  const choices = story.lanes.map((lane) => [lane.id, lane.label]);
  if (choices.length > 1) choices.push([BOTH, "side by side"]);
  byId("modes").hidden = choices.length < 2;
  byId("modes").replaceChildren(...choices.map(([id, label]) => {
    const button = h("button", { type: "button", value: id, "aria-pressed": String(id === here.mode) }, label);
    button.addEventListener("click", () => chooseMode(id));
    return button;
  }));
}

/* Where to be: the nearest valid place to what was asked for, and words for the difference. */
function place(asked) {
  const said = [];
  here.story = nearest(DATA.stories, asked.story, DATA.stories[0], "story", said);
  const modes = [...here.story.lanes];
  if (modes.length > 1) modes.push({ id: BOTH });
  const preferred = modes.find((mode) => mode.id === "keep") || modes[0];
  here.mode = nearest(modes, asked.mode, preferred, "mode", said).id;
  const last = length() - 1;
  const number = asked.step === null ? 0 : Number(asked.step === "" ? NaN : asked.step);
  here.at = Math.min(Math.max(Math.round(number) || 0, 0), last);
  if (asked.step !== null && number !== here.at) {
    said.push(`There is no step “${asked.step}” here: the steps are 0 to ${last}. This is step ${here.at}.`);
  }
  return said.join(" ");
}

function nearest(items, id, otherwise, what, said) {
  if (id === null) return otherwise;
  const found = items.find((item) => item.id === id);
  if (found) return found;
  const best = [...items].sort((a, b) => distance(a.id, id) - distance(b.id, id))[0];
  said.push(`There is no ${what} “${id}”. This is “${best.id}”.`);
  return best;
}

function distance(a, b) {
  let row = [...Array(b.length + 1).keys()];
  for (let i = 1; i <= a.length; i += 1) {
    const next = [i];
    for (let j = 1; j <= b.length; j += 1) {
      next[j] = Math.min(row[j] + 1, next[j - 1] + 1, row[j - 1] + (a[i - 1] === b[j - 1] ? 0 : 1));
    }
    row = next;
  }
  return row[b.length];
}

function readAddress() {
  const asked = new URLSearchParams(location.hash.slice(1));
  const notice = place({ story: asked.get("story"), mode: asked.get("mode"), step: asked.get("step") });
  byId("notice").hidden = !notice;
  byId("notice").textContent = notice;
  drawStory();
  draw();
  if (notice) writeAddress();
}

function writeAddress() {
  const hash = `#story=${here.story.id}&mode=${here.mode}&step=${here.at}`;
  if (location.hash !== hash) history.replaceState(null, "", hash);
}

function go(to) {
  const previous = here.at;
  here.at = Math.min(Math.max(to, 0), length() - 1);
  byId("notice").hidden = true;
  writeAddress();
  if (here.at !== previous) draw(previous);
}

function chooseMode(id) {
  const lane = here.story.lanes[0];
  const scene = (lanesShown()[0] || lane).steps[stepOf(lanesShown()[0] || lane)].s;
  here.mode = id;
  here.at = firstOfScene(scene);
  byId("notice").hidden = true;
  drawStory();
  draw();
  writeAddress();
  document.querySelector("#modes [aria-pressed=true]").focus({ preventScroll: true });
}

function firstOfScene(scene) {
  const steps = here.mode === BOTH
    ? here.story.frames.map((frame) => Math.max(...frame.map((n, index) => here.story.lanes[index].steps[n].s)))
    : lanesShown()[0].steps.map((step) => step.s);
  const found = steps.findIndex((n) => n === scene);
  return found < 0 ? steps.length - 1 : found;
}

function chooseStory(id) {
  stop();
  byId("notice").hidden = true;
  place({ story: id, mode: here.story.lanes.length > 1 && here.mode === BOTH ? BOTH : null, step: null });
  drawStory();
  draw();
  writeAddress();
}

function play() {
  if (timer) { stop(); return; }
  if (here.at === length() - 1) go(0);
  byId("play").setAttribute("aria-pressed", "true");
  byId("play").setAttribute("aria-label", "Pause");
  wait();
}

/* A step stays for as long as its words take to read. */
function wait() {
  const words = lanesShown().reduce((most, lane) => Math.max(most, lane.steps[stepOf(lane)].y.split(" ").length), 0);
  timer = setTimeout(() => {
    go(here.at + 1);
    if (here.at === length() - 1) stop();
    else wait();
  }, (1300 + 190 * words) / Number(byId("speed").value));
}

function stop() {
  clearTimeout(timer);
  timer = 0;
  byId("play").setAttribute("aria-pressed", "false");
  byId("play").setAttribute("aria-label", "Play");
}

function step(by) {
  stop();
  go(here.at + by);
}

function cycle(values, value) {
  return values[(values.indexOf(value) + 1) % values.length];
}

function faster(by) {
  const { options, selectedIndex } = byId("speed");
  byId("speed").selectedIndex = Math.min(Math.max(selectedIndex + by, 0), options.length - 1);
}

const KEYS = {
  ArrowRight: () => step(1),
  ArrowLeft: () => step(-1),
  Home: () => step(-here.at),
  End: () => step(length()),
  " ": play,
  m: () => chooseMode(cycle([...byId("modes").children].map((b) => b.value), here.mode)),
  s: () => chooseStory(cycle(DATA.stories.map((story) => story.id), here.story.id)),
  "+": () => faster(1),
  "-": () => faster(-1),
};

function onKey(event) {
  const { target, key } = event;
  if (event.altKey || event.ctrlKey || event.metaKey || target.matches("select")) return;
  if (target.matches("input") && key !== " " && key.length > 1) return;
  if (key === " " && target.matches("button, summary")) return;
  if (!(key in KEYS) || (key === "m" && here.story.lanes.length < 2) || (key === "s" && DATA.stories.length < 2)) return;
  event.preventDefault();
  KEYS[key]();
}

DATA.stories.forEach((story) => story.lanes.forEach(unfold));
document.body.classList.toggle("one-story", DATA.stories.length === 1);
if (DATA.stories.length > 1) {
  byId("stories").append(h("ol", {}, DATA.stories.map((story, index) => {
    const button = h("button", { type: "button", value: story.id }, [
      h("span", { class: "number", "aria-hidden": "true" }, index + 1), h("span", { class: "title" }, story.title),
    ]);
    button.addEventListener("click", () => chooseStory(story.id));
    return h("li", {}, [button]);
  })));
}
byId("first").addEventListener("click", () => step(-here.at));
byId("back").addEventListener("click", () => step(-1));
byId("play").addEventListener("click", play);
byId("next").addEventListener("click", () => step(1));
byId("last").addEventListener("click", () => step(length()));
byId("step").addEventListener("input", () => { stop(); go(Number(byId("step").value)); });
document.addEventListener("keydown", onKey);
addEventListener("hashchange", readAddress);
addEventListener("resize", () => draw());
readAddress();
