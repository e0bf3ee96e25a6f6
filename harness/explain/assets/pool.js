/* Draws a state of the pool. It only shows what the trace says. */

function poolPicture(state, before, step) {
  const changed = new Set(step.c.flatMap((change) => change[1]));
  const of = (key, name) => (changed.has(key) ? `${name} changed` : name);
  const sections = [
    poolSection("GPU pool", state, before, of, ""),
    h("div", { class: "pair" }, [queueSection(state, of), mapSection("Hash map", state, before, of, "")]),
    requestSection(state, of),
  ];
  if (state.auxiliary) sections.push(auxiliarySection(state, of));
  if (state.cpu) {
    sections.push(poolSection("Host pool", { ...state.cpu, requests: [], stores: [] }, before && before.cpu, of, "cpu-"));
    sections.push(mapSection("Host hash map", state.cpu, before && before.cpu, of, "cpu-"));
  }
  return h("div", { class: "picture" }, sections);
}

function holders(state, id) {
  const names = state.requests.filter((r) => r.blocks.includes(id)).map((r) => r.name);
  const copied = (state.stores || []).some((store) => store[0].includes(id));
  return copied ? [...names, "copy"] : names;
}

function poolSection(title, state, before, of, place) {
  const used = state.blocks.length - state.free.length;
  const cells = state.blocks.map((block, id) => {
    const old = before && before.blocks[id];
    return blockCell(state, block, id, old, of(`${place}block-${id}`, "block"), place);
  });
  const counted = place ? null : h("span", { "data-used": used }, `the guard counts ${used} of ${state.blocks.length} as used`);
  return h("section", {}, [
    h("h3", {}, [title, counted]),
    h("ul", { class: place ? "blocks host" : "blocks" }, cells),
    place ? null : legend(),
  ]);
}

function blockCell(state, [refs, hash, fill], id, old, name, place) {
  const isNull = id === 0;
  const free = state.free.includes(id);
  const who = holders(state, id);
  const kind = isNull ? "null" : !free ? "held" : hash ? "cached" : "free";
  const label = { null: "null block", held: "held", cached: "free, cached", free: "free" }[kind];
  const owner = who[0] || "copy";
  const badges = who.map((n) => (n === "copy" ? h("span", {}, "copy") : h("span", { class: `badge of-${n}` }, n)));
  const lost = old && old[1] && old[1] !== hash ? old[1] : "";
  const tag = hash
    ? h("span", { class: "tag" }, hash)
    : lost
      ? h("span", { class: "tag gone" }, lost)
      : h("span", { class: "tag none" }, isNull ? "" : "no hash");
  const spoken = `Block ${id}: ${label}${who.length ? ` by ${who.join(" and ")}` : ""}, ` +
    `${refs} references, ${hash ? `hash ${hash}` : "no hash"}${free ? "" : ", counts as used"}.`;
  return h("li", {
    class: `${name} ${kind}${owner && kind === "held" && !place ? ` of-${owner}` : ""}`,
    "data-block": `${place}${id}`, "data-state": kind, "data-refs": refs, "data-hash": hash,
    "data-counted": free ? "" : "used",
  }, [
    h("span", { class: "unseen" }, spoken),
    free ? null : h("span", { class: "used", "aria-hidden": "true" }),
    h("span", { class: "row", "aria-hidden": "true" }, [
      h("span", { class: "id" }, id), isNull ? null : h("span", { class: "refs" }, `×${refs}`),
    ]),
    h("span", { class: "state", "aria-hidden": "true" }, badges.length ? badges : [{ null: "null", held: "held", cached: "cached", free: "free" }[kind]]),
    isNull ? null : h("span", { class: "fill", "aria-hidden": "true" }, [0, 1, 2, 3].map((n) => h("i", { class: n < fill ? "on" : "" }))),
    h("span", { "aria-hidden": "true", class: "row" }, [tag]),
  ]);
}

function legend() {
  const entry = (name, text) => h("b", {}, [h("i", { class: name }), text]);
  return h("p", { class: "legend", "aria-hidden": "true" }, [
    entry("l-held", "held by a request"), entry("l-cached", "free, still cached"),
    entry("", "free"), entry("l-used", "counts as used"), h("b", {}, "×2 references"),
  ]);
}

function queueSection(state, of) {
  const chips = state.free.map((id, index) => {
    const names = ["chip", index === 0 ? "head" : "", state.blocks[id][1] ? "cached" : ""];
    return h("li", { class: of(`queue-${id}`, names.join(" ")), "data-flip": `queue-${id}`, "data-queue": id }, id);
  });
  const row = h("ol", { class: "queue" }, chips);
  if (!chips.length) row.append(h("li", { class: "empty" }, "empty: no block is free"));
  return h("section", {}, [h("h3", {}, ["Free queue", h("span", {}, "handed out from the head")]), row]);
}

function mapSection(title, state, before, of, place) {
  const rows = Object.entries(state.map).map(([hash, ids]) =>
    h("li", { class: of(`${place}map-${hash}`, "chip"), "data-map": hash, "data-flip": `${place}map-${hash}` }, [
      h("span", { class: "tag" }, hash), ` → ${ids.join(", ")}`,
    ]));
  const gone = before ? Object.keys(before.map).filter((hash) => !(hash in state.map)) : [];
  gone.forEach((hash) => rows.push(h("li", { class: "chip gone", "data-flip": `${place}map-${hash}` }, [
    h("span", { class: "unseen" }, "forgotten: "), hash,
  ])));
  if (!Object.keys(state.map).length) rows.push(h("li", { class: "empty" }, "empty: no lookup can hit"));
  return h("section", {}, [
    h("h3", {}, [title, h("span", {}, "hash → block")]), h("ul", { class: "map" }, rows),
  ]);
}

function requestSection(state, of) {
  const rows = state.requests.map((r) => requestRow(r, of));
  return h("section", {}, [
    h("h3", {}, ["Requests", h("span", {}, "■ computed  ▨ from the cache  □ not computed")]),
    h("ul", { class: "requests" }, rows),
  ]);
}

function requestRow(r, of) {
  const done = r.state === "finished";
  const cells = [];
  for (let start = 0; start < r.tokens; start += 4) {
    const group = [];
    for (let n = start; n < Math.min(start + 4, r.tokens); n += 1) {
      group.push(h("i", { class: n < r.hit && n < r.computed ? "hit" : n < r.computed ? "on" : "" }));
    }
    cells.push(h("span", {}, group));
  }
  const preempted = r.preemptions ? h("span", { class: "was" }, `preempted ${r.preemptions}×`) : null;
  return h("li", {
    class: of(`request-${r.name}`, `request ${r.state} of-${r.name}`), "data-request": r.name,
    "data-computed": r.computed, "data-state": r.state, "data-tokens": r.tokens,
  }, [
    h("div", { class: "row" }, [
      h("span", { class: "badge" }, r.name), r.state, preempted,
      h("span", { class: "num" }, done ? `${r.tokens} tokens` : `${r.computed} of ${r.tokens} tokens computed`),
    ]),
    done ? null : h("div", { class: "tokens", "aria-hidden": "true" }, cells),
  ]);
}

function auxiliarySection(state, of) {
  const [scheduler, worker, flight] = state.auxiliary;
  const fact = (text, value, n) => h("li", { class: of(`auxiliary-${n}`, "fact") }, [`${text} `, h("b", {}, value)]);
  return h("section", {}, [
    h("h3", {}, ["Auxiliary output"]),
    h("ul", { class: "facts" }, [
      fact("scheduler's generation", scheduler, 0), fact("worker's generation", worker, 1), fact("outputs in flight", flight, 2),
    ]),
  ]);
}
