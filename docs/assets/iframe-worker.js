// Browsers start no worker on a page that is opened from disk. There, the search runs in a hidden frame instead.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.waiting = [];
      this.frame.addEventListener("load", () => {
        const inside = this.frame.contentWindow;
        inside.postMessage = (data) => this.receive(data);
        const script = inside.document.createElement("script");
        script.src = url;
        script.addEventListener("load", () => {
          const waiting = this.waiting;
          this.waiting = null;
          waiting.forEach((data) => this.postMessage(data));
        });
        inside.document.body.append(script);
      }, { once: true });
      document.body.append(this.frame);
    }

    receive(data) {
      const event = new MessageEvent("message", { data });
      if (this.onmessage) this.onmessage(event);
      this.dispatchEvent(event);
    }

    postMessage(data) {
      if (this.waiting) this.waiting.push(data);
      else this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data }));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
