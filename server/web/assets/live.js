// Replaces the parts of the page that have changed. Without this script the page stays as it was loaded.
"use strict";
(() => {
  const main = document.querySelector("main[data-view]");
  const line = document.getElementById("live");
  if (!main || !line || !window.EventSource) return;

  const words = document.createElement("span");
  const button = document.createElement("button");
  button.type = "button";
  line.replaceChildren(words, " ", button);
  let source = null;

  function say(text, label) {
    words.textContent = text;
    button.textContent = label;
  }

  // Restores the focus: the new part has an element of the same name.
  function replace(part) {
    const place = document.getElementById(part.id);
    if (!place) return;
    const active = place.contains(document.activeElement) ? document.activeElement : null;
    const scrolled = Array.from(place.querySelectorAll(".scroll"), (one) => one.scrollLeft);
    place.innerHTML = part.html;
    place.querySelectorAll(".scroll").forEach((one, i) => { one.scrollLeft = scrolled[i] || 0; });
    if (!active) return;
    const again = active.id ? document.getElementById(active.id) : place.querySelector(".scroll");
    if (again) again.focus({ preventScroll: true });
  }

  function start() {
    source = new EventSource("events?view=" + main.dataset.view);
    source.addEventListener("open", () => say("These figures are live.", "Pause"));
    source.addEventListener("part", (event) => replace(JSON.parse(event.data)));
    source.addEventListener("signed-out", () => { source.close(); window.location.reload(); });
    source.addEventListener("error", () => {
      if (source.readyState === EventSource.CLOSED) { source = null; say("The live figures have ended.", "Resume"); }
      else say("The server does not answer; trying again.", "Pause");
    });
  }

  button.addEventListener("click", () => {
    if (source) {
      source.close();
      source = null;
      say("These figures are paused.", "Resume");
    } else {
      start();
    }
  });
  say("Connecting for live figures.", "Pause");
  start();
})();
