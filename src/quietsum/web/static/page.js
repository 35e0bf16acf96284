/* The few things that htmx does not do: values of sliders for screen readers, and a word when the news stops. */
"use strict";

function tellSliders() {
  for (const slider of document.querySelectorAll("input[type=range]")) {
    const output = document.getElementById("out-" + slider.id);
    if (output) slider.setAttribute("aria-valuetext", output.textContent);
  }
}

document.addEventListener("htmx:afterSettle", tellSliders);
document.addEventListener("htmx:oobAfterSwap", tellSliders);
document.addEventListener("htmx:afterRequest", (event) => {
  if (event.target.matches && event.target.matches("form[hx-get='/planner/answer']") && event.detail.successful) {
    const query = new URLSearchParams(new FormData(event.target));
    history.replaceState(null, "", "/planner?" + query);
  }
});
document.addEventListener("htmx:sseError", () => document.body.classList.add("stale"));
document.addEventListener("htmx:sseOpen", () => document.body.classList.remove("stale"));
document.addEventListener("htmx:sseClose", () => document.body.classList.remove("stale"));
