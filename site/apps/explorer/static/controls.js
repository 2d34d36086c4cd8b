// Text, presets, model, the switches of the attention view, and the link.
(function () {
  "use strict";
  const { el, byId } = Explorer;
  const PAUSE = 150; // milliseconds after the last key before the model is asked

  Explorer.Controls = class Controls {
    constructor(app) {
      this.app = app;
      const on = (id, event, then) => byId(id).addEventListener(event, then);
      byId("model").replaceChildren(
        ...Object.keys(Explorer.models).map((role) => el("option", {}, role)));
      on("model", "change", () => app.set({ model: byId("model").value }));
      byId("presets").append(...Explorer.presets.map((preset) =>
        el("button", { type: "button", onclick: () => this.open(preset) }, preset.name)));
      on("text", "input", () => {
        clearTimeout(this.timer);
        this.timer = setTimeout(() => this.flush(), PAUSE);
      });
      on("text", "change", () => this.flush()); // the reader has left the box
      for (const direction of ["out", "in"])
        on(`look-${direction}`, "change", () => app.set({ direction }));
      on("weighted", "change", () => app.set({ weighted: byId("weighted").checked }));
      on("copy", "click", () => this.copy());
      on("tokens-table", "toggle", () => app.view && app.tokens.paint());
    }

    // A preset keeps the model that the reader chose, and points to the head that its chapter found.
    open(preset) {
      const { model, head } = this.app.state;
      this.app.cuts.suggested = preset.writers[model];
      this.app.set({
        ...Explorer.DEFAULTS, model, text: preset.text, head: preset.heads[model] || head,
      });
    }

    // What was typed and not taken yet, as a change of the state; asking for it takes it.
    typed() {
      if (!this.timer) return {};
      clearTimeout(this.timer);
      this.timer = null;
      return { text: byId("text").value };
    }

    flush() {
      if (this.timer) this.app.set({});
    }

    async copy() {
      this.flush();
      const link = location.href.split("#")[0] + Explorer.toHash(this.app.state);
      const field = byId("link");
      field.hidden = false;
      field.value = link;
      field.select();
      try {
        await navigator.clipboard.writeText(link);
        this.app.notice(["The link is copied. It opens this page in this state."]);
      } catch {
        this.app.notice(["Copy the link from the field: this browser allows no copying from here."]);
      }
    }

    render() {
      const { state } = this.app, box = byId("text");
      byId("model").value = state.model;
      if (box.value !== state.text) box.value = state.text;
      byId(`look-${state.direction}`).checked = true;
      byId("weighted").checked = state.weighted;
      byId("link").hidden = true;
    }
  };
})();
