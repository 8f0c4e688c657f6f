// Elements of text. Nothing that was read ever becomes HTML: children are nodes or text.

/** @typedef {Node | string | null | undefined | false} Child */

/** @param {string} tag @param {Record<string, string>} [attributes] @param {...Child} children */
export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children.filter((child) => child !== null && child !== undefined && child !== false));
  return made;
}

/** @param {string} id */
export function byId(id) {
  return /** @type {HTMLElement} */ (document.getElementById(id));
}

/** @param {string} words @param {() => void} act @param {Record<string, string>} [attributes] */
export function button(words, act, attributes = {}) {
  const made = element("button", { type: "button", ...attributes }, words);
  made.addEventListener("click", act);
  return made;
}

/** Pairs of a term and what is said of it; those without are left out.
 * @param {string} style @param {[string, Child][]} pairs */
export function pairs(style, pairs) {
  const shown = pairs.filter(([, value]) => value);
  return element("dl", { class: style }, ...shown.flatMap(([term, value]) => [element("dt", {}, term), element("dd", {}, value)]));
}

/** Gives the page a moment to paint and to hear its reader. A timer would wait longer in a tab behind others. */
export function moment() {
  const { port1, port2 } = new MessageChannel();
  return new Promise((resolve) => {
    port1.onmessage = () => (port1.close(), resolve(undefined));
    port2.postMessage(null);
  });
}
