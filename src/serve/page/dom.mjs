// DOM nodes from plain values. Nothing in the page parses HTML: text becomes text nodes and nothing else.

const MATHML = "http://www.w3.org/1998/Math/MathML";
const SVG = "http://www.w3.org/2000/svg";

/**
 * An element. Of `properties`, functions are listeners (`onclick` listens to "click"), true is an attribute
 * without a value, and the rest are attributes. Children are nodes, strings, or lists of them. False, null
 * and undefined are left out in both.
 */
export function element(name, properties = {}, ...children) {
  return filled(document.createElement(name), properties, children);
}

/** An element of a formula. */
export function mathElement(name, properties = {}, ...children) {
  return filled(document.createElementNS(MATHML, name), properties, children);
}

/** An element of a drawing. */
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
  // One by one: a spread of a hundred thousand children is too many arguments.
  for (const child of children.flat()) {
    if (child !== null && child !== undefined && child !== false) node.append(child);
  }
  return node;
}
