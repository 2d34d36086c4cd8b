// The likeliest next tokens at one place, and what the cuts changed.
(function () {
  "use strict";
  const { el, byId } = Explorer;

  // A bar from 0 to 1: filled for the run with cuts, with an outline for the run without.
  function bar(p, p0, cut) {
    const part = (name, x) => el("span", { class: name, style: `width:${(100 * x).toFixed(2)}%` });
    return el("span", { class: "cx-bar", "aria-hidden": "true" },
      part("cx-fill", p), cut ? part("cx-clean", p0) : null);
  }

  Explorer.Predictions = class Predictions {
    constructor(app) {
      this.app = app;
      this.select = byId("at");
      this.select.addEventListener("change", () => {
        this.app.set({ at: this.select.value === "" ? null : Number(this.select.value) });
      });
      byId("at-pinned").addEventListener("click", () => this.app.set({ at: this.app.pinned() }));
    }

    render() {
      const { view, state } = this.app, { rows } = view.reading, cut = this.app.isCut();
      this.options();
      // Bars are drawn against the largest of them, so that small probabilities can be compared.
      const top = Math.max(...rows.map((row) => Math.max(row.p, row.p0)));
      const choose = (row) =>
        el("button", {
          type: "button", class: "cx-token", "data-id": row.id,
          "aria-pressed": row.id === view.reading.target.id,
          onclick: () => this.app.set({ token: row.id }),
        }, this.app.name(row.id));
      const line = (row) => [
        choose(row), bar(row.p / top, row.p0 / top, cut), Explorer.share(row.p),
        ...(cut ? [Explorer.signed(row.p - row.p0, 3)] : []), Explorer.signed(row.logit),
        ...(cut ? [Explorer.signed(row.logit - row.logit0)] : []),
      ];
      const heads = cut
        ? ["Token", "", "p", "change", "logit", "change"]
        : ["Token", "", "p", "logit"];
      const after = this.app.name(view.ids[view.reading.at]);
      const caption = cut
        ? `After ${after}, with the cuts; the outline is the run without them`
        : `After ${after}`;
      const had = document.activeElement?.dataset?.id;
      byId("predictions").replaceChildren(
        Explorer.table(caption, heads, rows.map(line), { class: "cx-bars" }));
      // A new table must not take the reader's place away.
      if (had) byId("predictions").querySelector(`[data-id="${had}"]`)?.focus();
    }

    options() {
      const { view, state } = this.app, key = view.ids.join();
      if (key !== this.key) {
        this.key = key;
        this.select.replaceChildren(
          el("option", { value: "" }, "the last token"),
          ...view.ids.map((id, i) => el("option", { value: i }, `${i}: ${this.app.name(id)}`)));
      }
      this.select.value = state.at === null ? "" : String(state.at);
    }
  };
})();
