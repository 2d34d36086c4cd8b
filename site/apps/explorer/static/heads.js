// All heads as a grid: a small picture of each pattern, a button to choose it, a box to switch it off.
(function () {
  "use strict";
  const { el, byId } = Explorer;

  Explorer.Heads = class Heads {
    constructor(app) {
      this.app = app;
      this.grid = byId("heads");
    }

    build(cfg) {
      this.cells = {};
      const layers = Array.from({ length: cfg.n_layers }, (_, layer) => {
        const cells = Array.from({ length: cfg.n_heads }, (_, h) => this.cell(`${layer}.${h}`));
        return el("fieldset", { class: "cx-layer" }, el("legend", {}, `Layer ${layer}`), ...cells);
      });
      this.grid.replaceChildren(...layers);
    }

    cell(head) {
      const canvas = el("canvas", { "aria-hidden": "true" }), most = el("span", { class: "cx-most" });
      const button = el("button", {
        type: "button", "data-head": head,
        onclick: () => {
          this.app.set({ head });
          this.app.say(this.app.tokens.sentence());
        },
      }, canvas, el("span", { class: "cx-name" }, head), most);
      const box = el("input", {
        type: "checkbox", checked: true, "data-off": head,
        onchange: () => {
          const off = this.app.state.off.filter((x) => x !== head);
          this.app.set({ off: box.checked ? off : [...off, head] });
        },
      });
      const label = el("label", {}, box, el("span", { class: "cx-hidden" }, `head ${head} `), "on");
      this.cells[head] = { canvas, most, button, box };
      return el("div", { class: "cx-cell" }, button, label);
    }

    render() {
      const { view, state } = this.app;
      if (this.role !== state.model) {
        this.role = state.model;
        this.drawn = null;
        this.build(view.cfg);
      }
      const { weighted } = state, rows = [];
      const fresh = this.drawn !== view.patterns || this.weighted !== weighted;
      this.drawn = view.patterns;
      this.weighted = weighted;
      const from = this.app.pinned();
      for (const [head, cell] of Object.entries(this.cells)) {
        if (fresh) this.draw(cell.canvas, view, head, weighted);
        const values = this.app.attention(head, from), [best] = Explorer.strongest(values, 1);
        const name = this.app.name(view.ids[best]), share = Explorer.share(values[best]);
        cell.most.textContent = `${name} ${share}`;
        cell.button.setAttribute("aria-pressed", head === state.head);
        cell.button.classList.toggle("cx-off", state.off.includes(head));
        cell.box.checked = !state.off.includes(head);
        rows.push([head, name, share, state.off.includes(head) ? "off" : "on"]);
      }
      const box = byId("heads-table");
      const seen = state.direction === "out" ? "looks most at" : "is looked at most by";
      box.lastElementChild.replaceChildren(Explorer.table(
        `The token ${this.app.name(view.ids[from])} (${from}) ${seen}`,
        ["Head", "Token", weighted ? "Weighted attention" : "Attention", "Write"], rows));
    }

    // Rows are queries, columns keys; above the diagonal nothing is drawn.
    draw(canvas, view, head, weighted) {
      const { n } = view, place = [Explorer.layerOf(head), Explorer.indexOf(head)];
      canvas.width = canvas.height = n;
      const paper = canvas.getContext("2d"), image = paper.createImageData(n, n);
      for (let i = 0; i < n; i++) {
        const values = Explorer.row(view, ...place, i, weighted);
        for (let j = 0; j <= i; j++)
          image.data.set([...Explorer.cividis(values[j]), 255], 4 * (i * n + j));
      }
      paper.putImageData(image, 0, 0);
    }
  };
})();
