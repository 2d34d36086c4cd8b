// What the reader has chosen, as plain data, and the one function that keeps it possible.
(function () {
  "use strict";

  Explorer.DEFAULTS = {
    model: "attn-only-2l",
    text: "",
    head: "0.0",
    pin: null, // place of the pinned token; null is the last one
    at: null, // the place that predicts; null is the last one
    token: null, // id of the token whose logit is split; null is the likeliest one without cuts
    lookup: null, // id of the token whose QK and OV rows are shown; null is the pinned one
    direction: "out",
    weighted: false,
    off: [],
    edges: [],
    frozen: null, // the text whose clean patterns are kept
  };

  // One name for each head: "01.7" is none, for everything else compares names as texts.
  const HEAD = /^(0|[1-9]\d*)\.(0|[1-9]\d*)$/;

  Explorer.layerOf = (head) => Number(HEAD.exec(head)[1]);
  Explorer.indexOf = (head) => Number(HEAD.exec(head)[2]);
  Explorer.edgeName = ({ from, to, into }) => `${from}>${to}.${into}`;

  // The nearest possible state to a wanted one, with a sentence for everything that was changed.
  // Adds `ids` and `frozenIds`. Whatever stands in `wanted`, nothing is thrown.
  Explorer.tidy = function tidy(wanted, tokenizer, models) {
    const state = { ...Explorer.DEFAULTS, ...wanted }, problems = [];
    const refuse = (key, what) => {
      problems.push(what);
      state[key] = Explorer.DEFAULTS[key];
    };
    if (!Object.hasOwn(models, state.model))
      refuse("model", `There is no model “${String(state.model).slice(0, 40)}” here.`);
    const cfg = models[state.model];
    const isHead = (x) => {
      const found = typeof x === "string" && HEAD.exec(x);
      return found && Number(found[1]) < cfg.n_layers && Number(found[2]) < cfg.n_heads;
    };
    const isEdge = (c) =>
      isHead(c.from) && isHead(c.to) && ["q", "k", "v"].includes(c.into) &&
      Explorer.layerOf(c.from) < Explorer.layerOf(c.to);
    if (typeof state.text !== "string") refuse("text", "The text of the link could not be read.");
    const { ids, cut } = idsOf(state.text, tokenizer, cfg.n_ctx);
    state.ids = ids;
    if (cut)
      problems.push(`The text is too long: this model reads ${cfg.n_ctx} tokens, the start token ` +
        `among them. What comes after ${cut} is left out.`);
    for (const key of ["pin", "at"])
      if (state[key] !== null && !inside(state[key], ids.length))
        refuse(key, "The text no longer has the chosen token; the last one is taken.");
    for (const key of ["token", "lookup"])
      if (state[key] !== null && !inside(state[key], cfg.d_vocab))
        refuse(key, "The link names a token that does not exist.");
    if (!isHead(state.head)) refuse("head", `${state.model} has no such head; 0.0 is chosen.`);
    if (!["out", "in"].includes(state.direction)) refuse("direction", "Unknown direction.");
    const heads = state.off.filter(isHead), edges = state.edges.filter(isEdge);
    if (heads.length < state.off.length || edges.length < state.edges.length)
      problems.push(`Cuts that ${state.model} does not have were dropped.`);
    state.off = [...new Set(heads)].sort();
    state.edges = [...new Map(edges.map((c) => [Explorer.edgeName(c), c])).values()];
    freeze(state, tokenizer, cfg, problems);
    return { state, problems: [...new Set(problems)] };
  };

  // No character beyond the longest token times the number of tokens can be read; more is not spelled.
  function idsOf(text, tokenizer, most) {
    const all = tokenizer.encode(text.slice(0, most * tokenizer.longest));
    const ids = all.slice(0, most);
    const last = ids.slice(-6).map((id) => tokenizer.texts[id]).join("");
    return { ids, cut: all.length > most ? `“… ${last.trim()}”` : null };
  }

  function freeze(state, tokenizer, cfg, problems) {
    state.frozenIds = null;
    if (state.frozen === null) return;
    state.frozenIds = idsOf(String(state.frozen), tokenizer, cfg.n_ctx).ids;
    if (state.frozenIds.length === state.ids.length) return;
    problems.push("The text has another length now, so the frozen patterns were taken anew from it.");
    state.frozen = state.text;
    state.frozenIds = state.ids;
  }

  const inside = (x, size) => Number.isInteger(x) && x >= 0 && x < size;
})();
