// A classic script, before the style sheets apply: a module would run after the first paint, and a page that
// was set to dark would flash.
try {
  document.documentElement.dataset.theme = localStorage.getItem("sterna.theme") ?? "system";
} catch {
  // The browser keeps nothing for this page.
  document.documentElement.dataset.theme = "system";
}
