// What the chosen head would do with one token, straight from the weights: a QK row and an OV row.
(function () {
  "use strict";
  const { el, byId } = Explorer;

  Explorer.Rows = class Rows {
    constructor(app) {
      this.app = app;
      this.field = byId("lookup");
      this.field.addEventListener("change", () => app.choose("lookup", this.field.value));
      byId("lookup-pinned").addEventListener("click", () => this.app.set({ lookup: null }));
    }

    render(rows) {
      const { state } = this.app, token = this.app.name(this.app.rowToken());
      if (document.activeElement !== this.field) this.field.value = token;
      const half = (caption, list) => Explorer.table(caption, ["Token", "Value"],
        list.map(({ id, value }) => [this.app.name(id), Explorer.signed(value)]));
      const block = (title, note, [up, upRows], [down, downRows]) =>
        el("div", {}, el("h3", {}, title), el("p", {}, note),
          el("div", { class: "cx-pair" }, half(up, upRows), half(down, downRows)));
      const deep = Explorer.layerOf(state.head) > 0;
      byId("rows").replaceChildren(
        block(`QK: as a query, ${token} asks for`,
          "Scores of head " + state.head + " for every key token, by content alone (no positions), " +
            "minus their mean.",
          ["highest scores", rows.qk.top], ["lowest scores", rows.qk.bottom]),
        block(`OV: when it reads ${token}, the head writes`,
          "Centred logits, per unit of attention.",
          ["raises most", rows.ov.top], ["lowers most", rows.ov.bottom]));
      byId("rows-note").textContent = deep
        ? `Direct path only: head ${state.head} also reads what earlier layers wrote, which no row ` +
          "of one token can show. A head that goes by those writes, as an induction head does, gives " +
          "tokens here that look like chance."
        : "A head of the first layer reads embeddings and nothing else, so these rows are all of it " +
          "but the positions.";
    }
  };
})();
