// The parts of one token's centred logit: what embedding, each head and each MLP add to it, in nats.
(function () {
  "use strict";
  const { el, byId } = Explorer;

  Explorer.Contributions = class Contributions {
    constructor(app) {
      this.app = app;
      this.field = byId("token");
      this.field.addEventListener("change", () => app.choose("token", this.field.value));
      byId("token-top").addEventListener("click", () => this.app.set({ token: null }));
    }

    render() {
      const { view } = this.app, { parts, target } = view.reading, cut = this.app.isCut();
      if (document.activeElement !== this.field) this.field.value = this.app.name(target.id);
      const most = Math.max(...parts.flatMap((x) => [Math.abs(x.value), Math.abs(x.value0)]), 1e-9);
      const bar = (value, kind) => {
        const width = (50 * Math.abs(value)) / most, left = value < 0 ? 50 - width : 50;
        const sign = value < 0 ? "cx-down" : "cx-up";
        return el("span", {
          class: `${kind} ${sign}`, style: `left:${left.toFixed(2)}%;width:${width.toFixed(2)}%`,
        });
      };
      const line = ({ name, value, value0 }) => [
        /^\d/.test(name) ? `head ${name}` : name,
        el("span", { class: "cx-bar cx-both", "aria-hidden": "true" },
          bar(value, "cx-fill"), cut ? bar(value0, "cx-clean") : null),
        Explorer.signed(value), ...(cut ? [Explorer.signed(value0)] : []),
      ];
      const sum = (key) => parts.reduce((a, b) => a + b[key], 0);
      const token = this.app.name(target.id);
      const table = Explorer.table(
        `What adds to the logit of ${token} after ${this.app.name(view.ids[view.reading.at])}`,
        ["Part", "", "nats", ...(cut ? ["without cuts"] : [])],
        [...parts.map(line), ["sum", "", Explorer.signed(sum("value")),
          ...(cut ? [Explorer.signed(sum("value0"))] : [])]],
        { class: "cx-bars" });
      table.querySelector("tbody").lastElementChild.className = "cx-sum";
      byId("contributions").replaceChildren(table);
      byId("sum").textContent =
        `Red raises the logit, blue lowers it. The parts add up to ${Explorer.signed(sum("value"))}, ` +
        `and the model's centred logit of ${token} is ${Explorer.signed(target.logit)} ` +
        `(probability ${Explorer.share(target.p)}).`;
    }
  };
})();
