// Says when a living part is alive no more: htmx leaves the old content there in silence, which then looks like now.
"use strict";
const sign = () => document.getElementById("offline");
for (const trouble of ["htmx:sendError", "htmx:responseError", "htmx:timeout"]) {
  document.addEventListener(trouble, () => { sign().hidden = false; });
}
document.addEventListener("htmx:afterSwap", () => { sign().hidden = true; });
