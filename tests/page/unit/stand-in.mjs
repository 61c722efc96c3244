// A minimal DOM for the renderer, so that it can be tested without a browser. It has no parser: text that is
// inserted can only be read back as text.

class Node {
  childNodes = [];
  parent = null;

  get lastChild() {
    return this.childNodes.at(-1) ?? null;
  }

  get firstChild() {
    return this.childNodes[0] ?? null;
  }

  get textContent() {
    return this.childNodes.map((child) => child.textContent).join("");
  }

  set textContent(text) {
    this.replaceChildren(...(text === "" ? [] : [text]));
  }

  append(...nodes) {
    for (const node of nodes) {
      const child = typeof node === "string" ? new Text(node) : node;
      child.remove();
      child.parent = this;
      this.childNodes.push(child);
    }
  }

  replaceChildren(...nodes) {
    for (const child of this.childNodes) child.parent = null;
    this.childNodes = [];
    this.append(...nodes);
  }

  remove() {
    if (this.parent === null) return;
    const siblings = this.parent.childNodes;
    siblings.splice(siblings.lastIndexOf(this), 1);
    this.parent = null;
  }
}

class Text extends Node {
  constructor(data) {
    super();
    this.data = data;
  }

  get textContent() {
    return this.data;
  }
}

class Element extends Node {
  attributes = new Map();
  listeners = [];

  constructor(name, namespace) {
    super();
    this.name = name;
    this.namespace = namespace;
  }

  setAttribute(name, value) {
    this.attributes.set(name, value);
  }

  addEventListener(type, listener) {
    this.listeners.push([type, listener]);
  }

  querySelector(name) {
    return all(this).find((element) => element !== this && element.name === name) ?? null;
  }
}

export const standIn = {
  createElement: (name) => new Element(name, "html"),
  createElementNS: (namespace, name) => new Element(name, namespace),
};

/**
 * Visits a node and all elements below it. Not recursive: a hostile text must not overflow the stack of the
 * test instead of the page.
 */
export function all(root) {
  const found = [];
  const next = [root];
  for (let node = next.pop(); node !== undefined; node = next.pop()) {
    if (node instanceof Element) found.push(node);
    next.push(...node.childNodes.toReversed());
  }
  return found;
}

/** Depth of the deepest element. */
export function depth(node) {
  let deepest = 0;
  const next = [[node, 1]];
  for (let entry = next.pop(); entry !== undefined; entry = next.pop()) {
    deepest = Math.max(deepest, entry[1]);
    for (const child of entry[0].childNodes) next.push([child, entry[1] + 1]);
  }
  return deepest;
}

/** Readable markup for tests. */
export function markup(node) {
  const escape = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll('"', "&quot;");
  if (!(node instanceof Element)) return escape(node.data);
  const attributes = [...node.attributes].map(([name, value]) => ` ${name}="${escape(value)}"`).join("");
  return `<${node.name}${attributes}>${node.childNodes.map(markup).join("")}</${node.name}>`;
}
