// Interventions: heads off, patterns frozen, one head's write cut out of another head's input.
(function () {
  "use strict";
  const { el, byId } = Explorer;
  const INPUTS = { q: "query", k: "key", v: "value" };

  Explorer.Cuts = class Cuts {
    constructor(app) {
      this.app = app;
      const on = (id, event, then) => byId(id).addEventListener(event, then);
      on("freeze", "change", () => {
        const frozen = byId("freeze").checked;
        app.controls.flush(); // the text to freeze is the one that stands in the box
        app.set({ frozen: frozen ? app.state.text : null });
      });
      on("clear", "click", () => app.set({ off: [], edges: [], frozen: null }));
      on("edge-form", "submit", (event) => {
        event.preventDefault();
        const edge = Object.fromEntries(
          ["from", "to", "into"].map((key) => [key, byId(`edge-${key}`).value]));
        app.set({ edges: [...app.state.edges, edge] });
      });
    }

    render() {
      const { state, view } = this.app, { cfg } = view;
      if (this.role !== state.model) {
        this.role = state.model;
        this.head = null;
        this.options(cfg);
      }
      this.suggest(state.head);
      byId("freeze").checked = state.frozen !== null;
      byId("clear").disabled = !this.app.isCut();
      byId("edges").replaceChildren(...state.edges.map((edge) => el("li", {},
        `${edge.from} into the ${INPUTS[edge.into]} of ${edge.to} `,
        el("button", {
          type: "button", "aria-label": `Undo: ${edge.from} into the ${INPUTS[edge.into]} of ${edge.to}`,
          onclick: () => {
            this.app.set({ edges: state.edges.filter((x) => x !== edge) });
            byId("edge-add").focus();
          },
        }, "undo"))));
      byId("words").textContent = words(state, cfg);
    }

    // The form stands on the edge that a reader is likely to want: a preset's writer, the chosen head.
    suggest(head) {
      if (this.suggested) byId("edge-from").value = this.suggested;
      if (head !== this.head && Explorer.layerOf(head) > 0) byId("edge-to").value = head;
      this.suggested = null;
      this.head = head;
    }

    options(cfg) {
      const names = (from, to) =>
        Array.from({ length: to - from }, (_, l) => l + from).flatMap((l) =>
          Array.from({ length: cfg.n_heads }, (_, h) => `${l}.${h}`));
      const fill = (id, heads) => byId(id).replaceChildren(...heads.map((x) => el("option", {}, x)));
      const deep = cfg.n_layers > 1;
      byId("edge-form").hidden = !deep;
      byId("edge-none").hidden = deep;
      if (!deep) return;
      fill("edge-from", names(0, cfg.n_layers - 1));
      fill("edge-to", names(1, cfg.n_layers));
    }
  };

  // What is cut, what is computed again, what is held: in words.
  function words(state, cfg) {
    const cut = [], again = new Set(), held = [];
    if (state.off.length) {
      cut.push(`the whole write of ${state.off.join(", ")}`);
      again.add("everything after it");
    }
    for (const { from, to, into } of state.edges) {
      cut.push(`the write of ${from} in the ${INPUTS[into]} input of ${to}, direct edge only`);
      const pattern = into === "v" || state.frozen !== null ? "" : " and pattern";
      if (state.frozen === null || into === "v")
        again.add(`the ${INPUTS[into]}${pattern} of ${to}, its write and what follows`);
    }
    if (state.frozen !== null) {
      const same = state.frozen === state.text;
      held.push(`all patterns, as in the clean run of ${same ? "this text" : `“${state.frozen}”`}`);
      if (state.edges.some((c) => c.into !== "v"))
        held.push("so a cut into a query or key changes nothing");
      if (!same) again.add("all values and writes, with the new text");
    }
    if (!cut.length && !held.length) return "Nothing is cut: this is the model as it was trained.";
    const list = (name, items) => (items.length ? `${name}: ${items.join("; ")}. ` : "");
    const left = state.edges.length && cfg.d_mlp
      ? "What an MLP in between made of the write stays. " : "";
    return (list("Cut", cut) + list("Recomputed", [...again]) + list("Held", held) + left).trim();
  }
  Explorer.words = words;
})();
