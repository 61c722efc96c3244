// The icons of the page: lines in a square of 24, in the colour of the surrounding text.

import { drawing } from "./dom.mjs";

const LINES = {
  sidebar: "M5 5h14a2 2 0 0 1 2 2v10a2 2 0 0 1-2 2H5a2 2 0 0 1-2-2V7a2 2 0 0 1 2-2zM9.5 5v14",
  plus: "M12 5v14M5 12h14",
  image:
    "M5 5h14a2 2 0 0 1 2 2v10a2 2 0 0 1-2 2H5a2 2 0 0 1-2-2V7a2 2 0 0 1 2-2z" +
    "M3 16l5-5 5 5 3-3 5 5M15.5 9.5v.2",
  close: "M6 6l12 12M18 6L6 18",
  up: "M12 19V6M6 11.5l6-6 6 6",
  down: "M12 5v13M6 12.5l6 6 6-6",
  stop: "M8 8h8v8H8z",
  left: "M14 6l-6 6 6 6",
  right: "M10 6l6 6-6 6",
  open: "M6 9l6 6 6-6",
  warn: "M12 4.5L2.9 19.5h18.2zM12 10.5v4M12 16.9v.2",
  sliders: "M4 8h8M18 8h2M4 16h2M12 16h8M15 5.5v5M9 13.5v5",
  sun:
    "M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8zM12 2.5v2M12 19.5v2M2.5 12h2M19.5 12h2M5.3 5.3l1.4 1.4" +
    "M17.3 17.3l1.4 1.4M18.7 5.3l-1.4 1.4M6.7 17.3l-1.4 1.4",
  moon: "M20 14.5A8.5 8.5 0 0 1 9.5 4 8.5 8.5 0 1 0 20 14.5z",
};

/** An icon next to or instead of a label, which names the action. */
export function icon(name) {
  const properties = {
    class: `icon icon-${name}`,
    viewBox: "0 0 24 24",
    "aria-hidden": "true",
    focusable: "false",
  };
  return drawing("svg", properties, drawing("path", { d: LINES[name] }));
}
