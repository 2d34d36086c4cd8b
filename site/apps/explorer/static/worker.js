// One way to ask the desk: through a worker made from the parts' own source text, or without one.
(function () {
  "use strict";

  const here = document.currentScript.src;
  const scripts = {}; // role -> promise of {header, buffer}
  const registered = {}; // role -> what its script brought
  const source = () =>
    `"use strict"; const core = {};\n${Explorer.parts.map((part) => `(${part})(core);`).join("\n")}
    const desk = new core.Desk();
    onmessage = (event) => postMessage(desk.answer(event.data));`;

  function bytesOf(base64) {
    if (Uint8Array.fromBase64) return Uint8Array.fromBase64(base64);
    const letters = atob(base64), bytes = new Uint8Array(letters.length);
    for (let i = 0; i < letters.length; i++) bytes[i] = letters.charCodeAt(i);
    return bytes;
  }

  // Called by a weights script: header as in model.js, and the numbers' bytes as base64.
  Explorer.weights = function weights(role, header, base64) {
    registered[role] = { header, buffer: bytesOf(base64).buffer };
  };

  // A classic script is the only way to read a file beside a page that was opened from disk.
  Explorer.script = function script(name) {
    return new Promise((done, fail) => {
      const tag = document.createElement("script");
      tag.src = new URL(name, here).href;
      tag.onload = done;
      tag.onerror = () => fail(new Error(`${name} could not be loaded; build the site again.`));
      document.head.append(tag);
    });
  };

  Explorer.fetchWeights = function fetchWeights(role) {
    scripts[role] =
      scripts[role] ||
      Explorer.script(`weights-${role}.js`).then(() => {
        if (registered[role]) return registered[role];
        throw new Error(`weights-${role}.js is damaged; build the site again.`);
      });
    scripts[role].catch(() => delete scripts[role]); // so that a later choice tries again
    return scripts[role];
  };

  // The parts in this page: for the fallback, and for anybody with a console.
  Explorer.core = function core() {
    const made = {};
    for (const part of Explorer.parts) part(made);
    return made;
  };

  Explorer.Line = class Line {
    constructor() {
      this.waiting = new Map();
      this.count = 0;
      this.loaded = {};
      this.open();
    }

    open() {
      try {
        const url = URL.createObjectURL(new Blob([source()], { type: "text/javascript" }));
        this.worker = new Worker(url);
        this.worker.onmessage = (event) => this.settle(event.data);
        this.worker.onerror = (event) => {
          event.preventDefault();
          this.fallBack();
        };
      } catch {
        this.fallBack();
      }
    }

    // Without a worker the page is busy while it computes, and everything else is the same.
    fallBack() {
      this.worker = null;
      this.desk = new (Explorer.core().Desk)();
      for (const [role, weights] of Object.entries(registered)) this.desk.load({ role, ...weights });
      for (const { message } of [...this.waiting.values()]) this.settle(this.desk.answer(message));
    }

    settle({ id, value, error }) {
      const { done, fail } = this.waiting.get(id) || {};
      this.waiting.delete(id);
      if (!done) return;
      if (error) fail(new Error(error));
      else done(value);
    }

    ask(kind, message) {
      return new Promise((done, fail) => {
        const sent = { ...message, kind, id: ++this.count };
        this.waiting.set(sent.id, { done, fail, message: sent });
        if (this.worker) this.worker.postMessage(sent);
        else setTimeout(() => this.settle(this.desk.answer(sent)));
      });
    }

    // Brings a model's weights to the desk, once.
    load(role) {
      this.loaded[role] =
        this.loaded[role] ||
        Explorer.fetchWeights(role).then((w) => this.ask("load", { role, ...w }));
      this.loaded[role].catch(() => delete this.loaded[role]);
      return this.loaded[role];
    }
  };

  // The first view waits longest for the worker and the weights, so both start before all else.
  Explorer.line = new Explorer.Line();
  const asked = new URLSearchParams(location.hash.slice(1)).get("model");
  Explorer.line.load(Object.hasOwn(Explorer.models, asked) ? asked : Explorer.DEFAULTS.model);
})();
