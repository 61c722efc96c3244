// A classic script, before the style sheet applies: a module would run after the first paint, and a page that
// was set to dark would flash.
document.documentElement.dataset.theme = localStorage.getItem("sterna.theme") ?? "system";
