/* Draws a recorded reset: one bar a request, the reset as a line, the moment as another. */

const ROW = 24;
const LEFT = 46;

function lifePicture(state, step, lane) {
  const { from, to, reset, requests } = lane.life;
  const width = Math.max(300, Math.min(760, document.getElementById("stage").clientWidth - 30));
  const x = (t) => LEFT + ((Math.min(Math.max(t, from), to) - from) / (to - from)) * (width - LEFT - 8);
  const height = (requests.length + 1) * ROW + 28;
  const rows = requests.map((r, index) => lifeRow(r, index, x, step, reset));
  const picture = s("svg", { class: "timeline", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `Requests around the reset; the moment is ${state.now.toFixed(3)} s` }, [
    ...rows,
    s("rect", { class: "veil", x: x(state.now), y: 18, width: Math.max(0, width - x(state.now)), height: height - 40 }),
    s("line", { class: "axis", x1: LEFT, x2: width - 8, y1: height - 22, y2: height - 22 }),
    ...axisTicks(from, to, reset, width / 90).map((t) => s("text", { x: x(t), y: height - 5, "text-anchor": "middle" }, `${(t - reset) > 0 ? "+" : ""}${+(t - reset).toFixed(2)} s`)),
    s("line", { class: "wipe", x1: x(reset), x2: x(reset), y1: 14, y2: height - 22 }),
    s("text", { x: x(reset), y: 10, "text-anchor": "middle" }, "reset"),
    s("line", { class: "now", x1: x(state.now), x2: x(state.now), y1: 18, y2: height - 22, "stroke-dasharray": "3 3" }),
  ]);
  return h("div", { class: "picture" }, [
    h("section", {}, [
      h("h3", {}, ["Requests around the reset", h("span", {}, "grey: waiting for the first token · blue: streaming · green: arrived later")]),
      picture,
    ]),
    h("section", {}, [h("h3", {}, ["This moment"]), h("ul", { class: "facts" }, [
      h("li", { class: "fact" }, [h("b", {}, `${state.now.toFixed(3)} s`), " into the run"]),
      h("li", { class: "fact" }, [h("b", {}, state.in_flight), " in flight at the reset"]),
      h("li", { class: "fact" }, [h("b", {}, state.done), " of them finished"]),
    ])]),
  ]);
}

function lifeRow(r, index, x, step, reset) {
  const y = 20 + index * ROW;
  const told = step.c.some((change) => change[1].includes(`request-${r.id}`));
  const names = [r.sent > reset ? "after" : "", r.ok ? "" : "failed", told ? "told" : ""].join(" ").trim();
  const first = r.first === null ? r.finished : r.first;
  return s("g", { class: names, "data-request": r.id }, [
    s("text", { x: LEFT - 8, y: y + 14, "text-anchor": "end" }, `#${r.id}`),
    s("rect", { class: "wait", x: x(r.sent), y: y + 3, width: Math.max(1, x(first) - x(r.sent)), height: ROW - 8, rx: 3 }),
    s("rect", { class: "stream", x: x(first), y: y + 3, width: Math.max(1, x(r.finished) - x(first)), height: ROW - 8, rx: 3 }),
    s("path", { class: "tick", d: r.ticks.map((t) => `M${x(t).toFixed(1)} ${y + 6}v${ROW - 14}`).join("") }),
  ]);
}

function axisTicks(from, to, reset, most) {
  const span = to - from;
  const step = [0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100].find((n) => span / n <= most) || span;
  const ticks = [];
  for (let n = Math.ceil((from - reset) / step); reset + n * step <= to; n += 1) ticks.push(reset + n * step);
  return ticks;
}
