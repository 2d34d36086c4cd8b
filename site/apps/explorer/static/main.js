// Starts the explorer: one state, one view of the last answer, and the panels that show both.
(function () {
  "use strict";
  const { byId } = Explorer;

  class App {
    constructor() {
      this.tokenizer = new Explorer.Tokenizer(Explorer.vocabulary);
      this.line = Explorer.line;
      this.view = null; // the last answer: ids, n, patterns, sizes, reading, cfg
      this.keys = {};
      this.controls = new Explorer.Controls(this);
      this.tokens = new Explorer.Tokens(this);
      this.heads = new Explorer.Heads(this);
      this.cuts = new Explorer.Cuts(this);
      this.predictions = new Explorer.Predictions(this);
      this.contributions = new Explorer.Contributions(this);
      this.rows = new Explorer.Rows(this);
      this.fromLink();
      // The anchors further down are not there yet.
      document.addEventListener("DOMContentLoaded", () => this.checkAnchor());
      window.addEventListener("hashchange", () => {
        if (location.hash !== Explorer.toHash(this.state)) this.fromLink();
      });
    }

    fromLink() {
      const link = Explorer.fromHash(location.hash), { wanted, problems } = link || {};
      if (!link && this.state) return this.checkAnchor();
      if (this.state && !Object.keys(wanted).length) return this.notice(problems);
      const [first] = Explorer.presets, model = (wanted && wanted.model) || Explorer.DEFAULTS.model;
      // Without a text of its own the page opens on the first preset.
      const start = { text: first.text, head: first.heads[model] || Explorer.DEFAULTS.head };
      this.state = null;
      this.cuts.suggested = first.writers[model];
      this.set({ ...(wanted && wanted.text !== undefined ? {} : start), ...wanted }, problems);
    }

    // What is no state may be an anchor of the page; what is neither is said.
    checkAnchor() {
      const name = location.hash.slice(1);
      if (/^[\w.-]+$/.test(name) && !document.getElementById(name))
        this.notice([`The link has an unknown part “${name.slice(0, 30)}”; it was left out.`]);
    }

    // Every change goes through here, and takes along what was typed just before it.
    set(patch, problems = []) {
      const wanted = { ...this.state, ...this.controls.typed(), ...patch };
      const tidied = Explorer.tidy(wanted, this.tokenizer, Explorer.models);
      this.state = tidied.state;
      this.notice([...problems, ...tidied.problems]);
      this.controls.render();
      this.refresh();
    }

    // Works until the newest state is on the screen; changes that come meanwhile are taken together.
    async refresh() {
      this.again = true;
      if (this.busy) return;
      this.busy = true;
      byId("app").setAttribute("aria-busy", "true");
      while (this.again) {
        this.again = false;
        try {
          await this.work(this.state);
        } catch (error) {
          this.notice([error.message]);
        }
      }
      this.busy = false;
      byId("app").setAttribute("aria-busy", "false");
      // The first view leaves the address alone: it may be an anchor that is still to be scrolled to.
      if (Explorer.firstView) Explorer.writeHash(this.state);
      else Explorer.firstView = performance.now();
    }

    async work(state) {
      const { model, ids, off, edges, frozenIds, at, token } = state;
      const place = at === null ? ids.length - 1 : at, { keys, line } = this;
      const run = JSON.stringify([model, ids, off, edges, frozenIds]);
      const read = JSON.stringify([place, token]);
      if (run !== keys.run) {
        if (!this.view) this.tokens.build(ids); // something to read while the weights come
        await line.load(model);
        const answer = await line.ask("run", {
          role: model, ids, off, edges, frozen: frozenIds, at: place, token,
        });
        this.view = { ...answer, ids, cfg: Explorer.models[model] };
        this.keys = { run, read };
      } else if (read !== keys.read) {
        this.view.reading = await line.ask("read", { at: place, token });
        keys.read = read;
      }
      if (this.state !== state) return; // something newer waits, and only that is shown
      const rows = line.ask("rows", {
        role: model, layer: Explorer.layerOf(state.head), head: Explorer.indexOf(state.head),
        token: this.rowToken(),
      });
      for (const panel of ["tokens", "heads", "cuts", "predictions", "contributions"])
        this[panel].render();
      const values = await rows;
      if (this.state === state) this.rows.render(values);
    }

    // ---- what the panels ask for

    name(id) {
      return Explorer.shown(this.tokenizer.texts[id], Explorer.vocabulary.bos);
    }

    pinned() {
      const last = (this.view || { n: this.state.ids.length }).n - 1, { pin } = this.state;
      return pin === null ? last : Math.min(pin, last);
    }

    rowToken() {
      return this.state.lookup === null ? this.view.ids[this.pinned()] : this.state.lookup;
    }

    isCut() {
      const { off, edges, frozen } = this.state;
      return off.length > 0 || edges.length > 0 || frozen !== null;
    }

    attention(head, token) {
      const { direction, weighted } = this.state;
      const place = [Explorer.layerOf(head), Explorer.indexOf(head)];
      return Explorer.attention(this.view, ...place, token, direction, weighted);
    }

    // Takes a typed token as state[key], by the name that the page shows (␣Sally, <0xF0>, U+000C) or
    // as plain text. What is not one token changes nothing, and the notice shows its pieces.
    choose(key, typed) {
      const named = this.tokenizer.texts.findIndex((_, id) => this.name(id) === typed);
      const text = typed.replaceAll("␣", " ").replaceAll("⏎", "\n").replaceAll("⇥", "\t");
      const own = this.tokenizer.spell(text), other = this.tokenizer.spell(` ${text}`);
      if (named >= 0) this.set({ [key]: named });
      else if (own.length === 1) this.set({ [key]: own[0] });
      else if (text && other.length === 1)
        this.set({ [key]: other[0] },
          [`“${text}” is one token only with the blank before it; that one is taken.`]);
      else if (!text) this.notice(["Type a token, for example ␣Sally."]);
      else
        this.notice([`“${text}” is ${own.length} tokens, not one: ` +
          `${own.map((id) => this.name(id)).join(" · ")}. Type one of them.`]);
    }

    notice(sentences) {
      byId("notice").textContent = sentences.join(" ");
    }

    // For those who listen: short, polite, and only for what they did themselves.
    say(sentence) {
      clearTimeout(this.saying);
      this.saying = setTimeout(() => (byId("live").textContent = sentence), 250);
    }
  }

  if (byId("app")) Explorer.app = new App();
})();
