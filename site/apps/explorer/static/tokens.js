// The text as coloured tokens: hover, focus or pin one, and see where the chosen head looks from it.
(function () {
  "use strict";
  const { el, byId } = Explorer;

  Explorer.Tokens = class Tokens {
    constructor(app) {
      this.app = app;
      this.strip = byId("tokens");
      this.focus = null; // place of the token under the pointer or the keyboard
      this.strip.addEventListener("keydown", (event) => this.key(event));
      this.strip.addEventListener("pointerover", (event) => this.over(event.target));
      this.strip.addEventListener("pointerleave", () => this.look(null));
      this.strip.addEventListener("focusin", (event) => {
        this.over(event.target);
        if (this.app.view) this.app.say(this.sentence());
      });
      this.strip.addEventListener("focusout", () => this.look(null));
      this.strip.addEventListener("click", (event) => this.pin(event.target));
    }

    place(target) {
      // Before the first answer the tokens can be read, and nothing is known about them.
      const button = this.app.view && target.closest && target.closest("[data-place]");
      return button ? Number(button.dataset.place) : null;
    }

    over(target) {
      const place = this.place(target);
      if (place !== null) this.look(place);
    }

    look(place) {
      if (place === this.focus || !this.app.view) return;
      this.focus = place;
      this.paint();
    }

    pin(target) {
      const place = this.place(target);
      if (place === null) return;
      // A second click on the pinned token lets it go: back to the last one.
      this.app.set({ pin: place === this.app.state.pin ? null : place });
      this.app.say(this.sentence());
    }

    key(event) {
      const place = this.place(event.target), last = this.app.view.n - 1;
      const to = {
        ArrowLeft: place - 1, ArrowRight: place + 1, ArrowUp: place - 1, ArrowDown: place + 1,
        Home: 0, End: last,
      }[event.key];
      if (place === null || to === undefined) return;
      event.preventDefault();
      this.buttons[Math.min(last, Math.max(0, to))].focus();
    }

    // The strip, built anew when the text has changed.
    build(ids) {
      const key = ids.join(), parts = [];
      if (key === this.shownIds) return;
      this.shownIds = key;
      this.focus = null;
      this.buttons = ids.map((id, place) => {
        const button = el("button", { type: "button", "data-place": place, tabindex: -1 },
          this.app.name(id));
        parts.push(button);
        if (this.app.tokenizer.texts[id].includes("\n")) parts.push(el("span", { class: "cx-break" }));
        return button;
      });
      this.strip.replaceChildren(...parts);
    }

    render() {
      const { view, state } = this.app;
      this.build(view.ids);
      const pinned = this.app.pinned();
      this.buttons.forEach((button, place) => {
        button.setAttribute("aria-pressed", place === state.pin);
        button.classList.toggle("cx-from", place === pinned);
        button.tabIndex = place === pinned ? 0 : -1;
      });
      this.paint();
    }

    values() {
      const { view, state } = this.app;
      this.from = Math.min(view.n - 1, this.focus === null ? this.app.pinned() : this.focus);
      return this.app.attention(state.head, this.from);
    }

    paint() {
      const values = this.values();
      this.buttons.forEach((button, place) => {
        const x = values[place], out = Number.isNaN(x);
        button.classList.toggle("cx-out", out);
        button.classList.toggle("cx-looking", place === this.from);
        button.dataset.value = out ? "" : x.toFixed(4);
        const rgb = out ? null : Explorer.cividis(x);
        button.style.backgroundColor = out ? "" : `rgb(${rgb.join(",")})`;
        button.style.color = out ? "" : Explorer.ink(rgb);
      });
      byId("readout").textContent = this.sentence(values);
      this.list(values);
    }

    sentence(values = this.values()) {
      const { view, state } = this.app, name = (place) => this.app.name(view.ids[place]);
      const best = Explorer.strongest(values, 4)
        .filter((place) => values[place] >= 0.0005)
        .map((place) => `${name(place)} (${place}) ${Explorer.share(values[place])}`);
      const what = state.weighted ? "weighted attention" : "attention";
      const verb = state.direction === "out" ? "from" : "to";
      return `Head ${state.head}, ${what} ${verb} ${name(this.from)} (${this.from}): ` +
        `${best.join(", ") || "none"}.`;
    }

    // The same numbers as a table, filled only while it is open.
    list(values) {
      const box = byId("tokens-table");
      if (!box.open) return;
      const kind = this.app.state.weighted ? "Weighted attention" : "Attention";
      const rows = this.app.view.ids.map((id, place) => [
        String(place), this.app.name(id),
        Number.isNaN(values[place]) ? "–" : Explorer.share(values[place]),
      ]);
      box.lastElementChild.replaceChildren(
        Explorer.table(this.sentence(values), ["Place", "Token", kind], rows));
    }
  };
})();
