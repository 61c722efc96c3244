// A classic script that runs before the style sheets apply: a module would run after the first paint, and a
// dark page would flash.
try {
  document.documentElement.dataset.theme = localStorage.getItem("sterna.theme") ?? "system";
} catch {
  // Storage is disabled for this page.
  document.documentElement.dataset.theme = "system";
}
