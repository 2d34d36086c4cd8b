// The desk that answers questions about models, in a worker or in the page: load, run, read, rows.
window.Explorer.parts.push(function desk(core) {
  "use strict";

  core.Desk = class Desk {
    constructor() {
      this.models = {};
      this.kept = new Map(); // clean passes, by model and ids
      this.now = this.clean = this.model = null;
    }

    load({ role, header, buffer }) {
      this.models[role] = new core.Model(header, new Uint16Array(buffer));
      return { role };
    }

    cleanPass(role, ids) {
      const key = `${role}:${ids}`;
      if (!this.kept.has(key)) {
        if (this.kept.size > 3) this.kept.delete(this.kept.keys().next().value);
        this.kept.set(key, this.models[role].run(ids));
      }
      return this.kept.get(key);
    }

    // One run with the cuts, beside the run without. `frozen`: ids whose clean patterns are used.
    run({ role, ids, off, edges, frozen, at, token }) {
      this.model = this.models[role];
      this.clean = this.now = this.cleanPass(role, ids);
      if (off.length || edges.length || frozen) {
        const patterns = frozen ? this.cleanPass(role, frozen).patterns : null;
        this.now = this.model.run(ids, { off, edges, patterns });
      }
      const { n, patterns, sizes } = this.now;
      return { n, patterns, sizes, reading: this.read({ at, token }) };
    }

    read({ at, token }) {
      return core.read(this.model, this.now, this.clean, at, token);
    }

    rows({ role, layer, head, token }) {
      return core.rows(this.models[role], layer, head, token);
    }

    // {id, kind, ...} -> {id, value} or {id, error}; nothing is thrown past here.
    answer(message) {
      try {
        return { id: message.id, value: this[message.kind](message) };
      } catch (error) {
        return { id: message.id, error: String(error.message || error) };
      }
    }
  };
});
