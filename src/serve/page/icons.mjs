// The page's few drawings: lines in a square of 24, in the colour of the text beside them.

import { drawing } from "./dom.mjs";

const LINES = {
  menu: "M4 7h16M4 12h16M4 17h10",
  plus: "M12 5v14M5 12h14",
  close: "M6 6l12 12M18 6L6 18",
  up: "M12 19V6M6 11.500l6-6 6 6",
  down: "M12 5v13M6 12.500l6 6 6-6",
  stop: "M8 8h8v8H8z",
  left: "M14 6l-6 6 6 6",
  right: "M10 6l6 6-6 6",
  open: "M6 9l6 6 6-6",
  sliders: "M4 8h8M18 8h2M4 16h2M12 16h8M15 5.500v5M9 13.500v5",
  sun: "M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8zM12 2.500v2M12 19.500v2M2.500 12h2M19.500 12h2M5.300 5.300l1.400 1.400" +
    "M17.300 17.300l1.400 1.400M18.700 5.300l-1.400 1.400M6.700 17.300l-1.400 1.400",
  moon: "M20 14.500A8.500 8.500 0 0 1 9.500 4 8.500 8.500 0 1 0 20 14.500z",
};

/** A drawing beside or instead of a label, which names what it does. */
export function icon(name) {
  const properties = { class: `icon icon-${name}`, viewBox: "0 0 24 24", "aria-hidden": "true", focusable: "false" };
  return drawing("svg", properties, drawing("path", { d: LINES[name] }));
}
