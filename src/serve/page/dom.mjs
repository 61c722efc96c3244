// Creates DOM nodes from plain values. The page never parses HTML: text only becomes text nodes.

const MATHML = "http://www.w3.org/1998/Math/MathML";
const SVG = "http://www.w3.org/2000/svg";

/**
 * Creates an element. In `properties`, functions become listeners (`onclick` listens to "click"), true
 * becomes an attribute without a value, and other values become attributes. Children are nodes, strings, or
 * lists of them. False, null and undefined are skipped in both.
 */
export function element(name, properties = {}, ...children) {
  return filled(document.createElement(name), properties, children);
}

/** Creates an element of a formula. */
export function mathElement(name, properties = {}, ...children) {
  return filled(document.createElementNS(MATHML, name), properties, children);
}

/** Creates an element of a drawing. */
export function drawing(name, properties = {}, ...children) {
  return filled(document.createElementNS(SVG, name), properties, children);
}

function filled(node, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (typeof value === "function") node.addEventListener(name.slice(2), value);
    else if (value !== false && value !== null && value !== undefined) {
      node.setAttribute(name, value === true ? "" : String(value));
    }
  }
  // One by one: spreading a hundred thousand children would exceed the argument limit.
  for (const child of children.flat()) {
    if (child !== null && child !== undefined && child !== false) node.append(child);
  }
  return node;
}
