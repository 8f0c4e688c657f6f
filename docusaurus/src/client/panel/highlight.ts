/** Highlights a quote on the page. */
import { findInLazy, openAround } from "../tabs.js";

const NAME = "affidavit";
// As strings: the older bundler would write every letter of Unicode out.
const NO_INK = new RegExp("[^\\p{L}\\p{N}]", "gu");
const SIGNS = new RegExp("^[^\\p{L}\\p{N}\\s]*", "u");
const FALLBACK_CLASS = "affidavit-quoted";

/** Opens the tab that it is in, scrolls to the heading, then to the quote if that is further down. Says whether the quote was found. */
export async function show(excerpt: string, anchor: string): Promise<boolean> {
  clearHighlight();
  const page = document.querySelector("#__docusaurus article") ?? document.body;
  const find = () => {
    const heading = document.getElementById(anchor);
    return excerpt ? quoteOn(page, heading, excerpt) : heading && around(heading);
  };
  const found = find() ?? (excerpt || anchor ? await findInLazy(page, find) : undefined);
  const heading = document.getElementById(anchor);
  const marked = found ?? (heading && around(heading));
  if (marked) {
    await openAround(marked.startContainer);
    mark(marked);
  }
  heading?.scrollIntoView();
  if (found && found.getBoundingClientRect().bottom > innerHeight) scrollTo(found.startContainer.parentElement!);
  return Boolean(found && excerpt);
}

export function clearHighlight(): void {
  if ("highlights" in CSS) CSS.highlights.delete(NAME);
  document.querySelector(`.${FALLBACK_CLASS}`)?.classList.remove(FALLBACK_CLASS);
}

/** Leaves the page's own nodes unchanged, because React owns them. */
function mark(range: Range): void {
  if ("highlights" in CSS) CSS.highlights.set(NAME, new Highlight(range));
  else range.startContainer.parentElement?.closest("p,li,td,pre,h1,h2,h3,h4,h5,h6")?.classList.add(FALLBACK_CLASS);
}

function scrollTo(element: Element): void {
  const isCalm = matchMedia("(prefers-reduced-motion: reduce)").matches;
  element.scrollIntoView({ block: "center", behavior: isCalm ? "auto" : "smooth" });
}

function around(element: Element): Range {
  const range = document.createRange();
  range.selectNodeContents(element);
  return range;
}

/** Below its heading if it is there, else anywhere on the page. */
function quoteOn(page: Element, heading: Element | null, excerpt: string): Range | undefined {
  const nodes = textNodes(page);
  const below = heading ? nodes.filter((node) => heading.compareDocumentPosition(node) & Node.DOCUMENT_POSITION_FOLLOWING) : [];
  return rangeOf(below, excerpt) ?? rangeOf(nodes, excerpt);
}

function textNodes(page: Element): Text[] {
  const walker = document.createTreeWalker(page, NodeFilter.SHOW_TEXT);
  const nodes: Text[] = [];
  while (walker.nextNode()) {
    const node = walker.currentNode as Text;
    if (!node.parentElement?.closest("[data-footnote-ref]")) nodes.push(node); // quotes have no marks of notes
  }
  return nodes;
}

function rangeOf(nodes: Text[], excerpt: string): Range | undefined {
  const found = locate(nodes.map(({ data }) => data), excerpt);
  if (!found) return undefined;
  const range = document.createRange();
  range.setStart(nodes[found.start.node]!, found.start.offset);
  range.setEnd(nodes[found.end.node]!, found.end.offset + 1);
  return range;
}

interface Position {
  node: number;
  offset: number;
}

/** The first and the last character of a text that runs over several nodes. Only letters and digits count: tables are
 * quoted with signs between their cells, 10³ stands on the page as a raised 3, and blocks have no space between them. */
export function locate(texts: string[], wanted: string): { start: Position; end: Position } | undefined {
  const positions: Position[] = [];
  let ink = "";
  texts.forEach((text, node) => {
    let offset = 0;
    for (const character of text) {
      const shown = inkOf(character);
      ink += shown;
      for (let count = shown.length; count > 0; count--) positions.push({ node, offset });
      offset += character.length;
    }
  });
  const wantedInk = inkOf(wanted);
  const at = wantedInk ? ink.indexOf(wantedInk) : -1;
  if (at < 0) return undefined;
  const start = positions[at]!;
  const { node, offset } = positions[at + wantedInk.length - 1]!;
  const [signs] = SIGNS.exec(texts[node]!.slice(offset + 1))!; // such as the full stop
  return { start, end: { node, offset: offset + signs.length } };
}

function inkOf(text: string): string {
  return text.normalize("NFKD").replace(NO_INK, "");
}
