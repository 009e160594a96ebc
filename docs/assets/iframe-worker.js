// A page that is opened from disk may start no Worker, and the search needs one: there it runs in a frame of its own.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(address) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      this.started = new Promise((resolve) => {
        frame.addEventListener("load", () => resolve(this.run(frame, address)), { once: true });
      });
      frame.srcdoc = "<!doctype html><title>search</title>";
      document.body.append(frame);
    }

    run(frame, address) {
      this.inside = frame.contentWindow;
      this.inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      const script = frame.contentDocument.createElement("script");
      script.src = address;
      const loaded = new Promise((resolve) => script.addEventListener("load", resolve));
      frame.contentDocument.head.append(script);
      return loaded;
    }

    async postMessage(data) {
      await this.started;
      this.inside.dispatchEvent(new MessageEvent("message", { data }));
    }
  };
}
