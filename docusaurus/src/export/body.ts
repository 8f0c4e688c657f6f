/** Reader for a built page: its visible text as sections of blocks, without navigation. */
import { parse, type DefaultTreeAdapterTypes } from "parse5";
import { isCopy } from "./lazy.js";

type Node = DefaultTreeAdapterTypes.Node;
type Element = DefaultTreeAdapterTypes.Element;

export type Kind = "prose" | "list" | "table" | "code";
export interface Block {
  kind: Kind;
  text: string;
}
export interface Section {
  level: number;
  anchor: string | null;
  path: string[];
  blocks: Block[];
}
export interface Body {
  /** Of the first heading, if it is of the first level. */
  title: string | undefined;
  sections: Section[];
}

const BODY_CLASS = "theme-doc-markdown";
const NOT_TEXT = new Set([
  "audio", "button", "canvas", "datalist", "embed", "iframe", "math", "nav", "noscript", "object", "script", "select",
  "style", "svg", "template", "textarea", "video",
]);
// Links to the place itself, tables of contents, cards that lead to other pages, the frame around live code.
const NOT_TEXT_CLASSES = [
  "hash-link", "table-of-contents", "theme-doc-card-container", "cardContainer", "playgroundHeader", "playgroundPreview",
];
const BLOCKS = new Set([
  "address", "article", "aside", "blockquote", "caption", "dd", "details", "div", "dl", "dt", "fieldset", "figcaption",
  "figure", "footer", "form", "header", "hr", "legend", "main", "ol", "p", "section", "summary", "ul",
]);
const APART = new Set(["br", "li", "td", "th"]); // in a line of text as much as on the page
const ADMONITIONS = ["note", "tip", "info", "warning", "danger", "caution"];
const RAISED = new Map(zip("0123456789+-=()ni", "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁼⁽⁾ⁿⁱ"));
const LOWERED = new Map(zip("0123456789+-=()", "₀₁₂₃₄₅₆₇₈₉₊₋₌₍₎"));

/** Null if it has no text of a docs page. */
export function readBody(html: string, title: string, labels: Map<string, string>): Body | null {
  const root = find(parse(html), (element) => hasClass(element, BODY_CLASS));
  if (!root) return null;
  const page = new Page(title, labels);
  page.walk(root);
  return page.finish();
}

/** The names that the theme gives to admonitions without a title, by their class. */
export function admonitionLabels(translations: Record<string, string>): Map<string, string> {
  return new Map(
    ADMONITIONS.map((type) => [`theme-admonition-${type}`, translations[`theme.admonition.${type}`] ?? type]),
  );
}

class Page {
  private readonly sections: Section[] = [];
  private readonly above: { level: number; text: string }[];
  private readonly panelLabels = new Map<Element, string>();
  private words = "";
  private itemDepth = 0;

  constructor(
    private readonly title: string,
    private readonly admonitions: Map<string, string>,
  ) {
    this.above = [{ level: 1, text: title }];
  }

  finish(): Body {
    this.flush();
    const first = this.sections[0];
    return { title: first?.level === 1 ? first.path.at(-1) : undefined, sections: this.sections };
  }

  walk(node: Node): void {
    if ("value" in node) this.words += node.value;
    else if ("tagName" in node) this.enter(node);
  }

  private children(element: Element): void {
    const inside = elements(element);
    const lazy = new Set<Node>(inside.filter((_, number) => inside[number + 1] && isCopy(inside[number + 1]!)));
    for (const child of element.childNodes) if (!lazy.has(child)) this.walk(child);
  }

  private enter(element: Element): void {
    const { tagName } = element;
    if (hasClass(element, "katex")) this.words += formula(element);
    else if (isNotText(element)) return;
    else if (/^h[1-6]$/.test(tagName)) this.heading(element);
    else if (tagName === "br") this.words += " ";
    else if (tagName === "img") this.words += attribute(element, "alt") ?? "";
    else if (tagName === "sup") this.words += shifted(element, RAISED);
    else if (tagName === "sub") this.words += shifted(element, LOWERED);
    else this.enterBlock(element);
  }

  private enterBlock(element: Element): void {
    const { tagName } = element;
    const role = attribute(element, "role");
    if (tagName === "pre") this.block("code", codeText(element).trimEnd());
    else if (tagName === "table") this.block("table", tableText(element));
    else if (tagName === "li" && role !== "tab") this.item(element);
    else if (role === "tablist") this.labelPanels(element);
    else if (role === "tabpanel") this.panel(element);
    else if (hasClass(element, "theme-admonition")) this.admonition(element);
    else if (BLOCKS.has(tagName)) this.around(() => this.children(element));
    else this.children(element);
  }

  private around(inside: () => void): void {
    this.flush();
    inside();
    this.flush();
  }

  private item(element: Element): void {
    this.flush();
    this.itemDepth += 1;
    this.children(element);
    this.flush();
    this.itemDepth -= 1;
  }

  private heading(element: Element): void {
    this.flush();
    const level = Number(element.tagName[1]);
    this.open(level, attribute(element, "id") ?? null, seen(inlineText(element)) || this.title);
  }

  private open(level: number, anchor: string | null, text: string): void {
    while ((this.above.at(-1)?.level ?? 0) >= level) this.above.pop();
    this.above.push({ level, text });
    this.sections.push({ level, anchor, path: this.above.map((heading) => heading.text), blocks: [] });
  }

  /** A label stands above its panel, as the reader finds it when the tab is open. */
  private labelPanels(list: Element): void {
    this.flush();
    const tabs = elements(list).filter((tab) => attribute(tab, "role") === "tab");
    const panels = elements(elementAfter(list)).filter((panel) => attribute(panel, "role") === "tabpanel");
    // Lazy tabs are built with the panel of the selected one only.
    const shown = panels.length === tabs.length ? tabs : tabs.filter(isSelected);
    panels.forEach((panel, number) => {
      const tab = shown[number];
      if (tab) this.panelLabels.set(panel, inlineText(tab));
    });
  }

  private panel(element: Element): void {
    this.block(this.textKind(), seen(this.panelLabels.get(element) ?? ""));
    this.around(() => this.children(element));
  }

  private admonition(element: Element): void {
    const [heading, ...rest] = elements(element);
    const label = [...this.admonitions].find(([type]) => hasClass(element, type))?.[1];
    const isNamedByTheme = heading !== undefined && seen(inlineText(heading)) === label;
    this.around(() => (isNamedByTheme ? rest.forEach((child) => this.walk(child)) : this.children(element)));
  }

  private flush(): void {
    const text = seen(this.words);
    this.words = "";
    if (text) this.add(this.textKind(), text);
  }

  private textKind(): Kind {
    return this.itemDepth > 0 ? "list" : "prose";
  }

  private block(kind: Kind, text: string): void {
    this.flush();
    if (text.trim()) this.add(kind, text);
  }

  private add(kind: Kind, text: string): void {
    if (this.sections.length === 0) this.open(1, null, this.title);
    this.sections.at(-1)?.blocks.push({ kind, text });
  }
}

/** The text of an element in one line, ignoring its blocks. */
function inlineText(node: Node): string {
  if ("value" in node) return node.value;
  if (!("tagName" in node)) return "";
  if (hasClass(node, "katex")) return formula(node);
  if (isNotText(node)) return "";
  if (node.tagName === "img") return attribute(node, "alt") ?? "";
  if (node.tagName === "sup") return shifted(node, RAISED);
  if (node.tagName === "sub") return shifted(node, LOWERED);
  const text = node.childNodes.map(inlineText).join("");
  return APART.has(node.tagName) || BLOCKS.has(node.tagName) ? ` ${text} ` : text;
}

/** A line for each row, its cells joined as `ingest` expects them. */
function tableText(table: Element): string {
  return all(table, (element) => element.tagName === "tr" || element.tagName === "caption")
    .map((row) => (row.tagName === "tr" ? elements(row) : [row]))
    .map((cells) => cells.map((cell) => seen(inlineText(cell))).join(" | "))
    .filter((row) => /[^\s|]/.test(row))
    .join("\n");
}

function codeText(node: Node): string {
  if ("value" in node) return node.value;
  if (!("tagName" in node) || node.tagName === "button") return "";
  return node.tagName === "br" ? "\n" : node.childNodes.map(codeText).join("");
}

/** KaTeX renders a formula twice, as HTML and as MathML; only its source is taken. */
function formula(element: Element): string {
  const source = find(element, (inner) => attribute(inner, "encoding") === "application/x-tex");
  return source ? `$${plainText(source).trim()}$` : "";
}

/** 10³ and not 103: the mark of a note is no text, and letters have no raised form that all fonts know. */
function shifted(element: Element, forms: Map<string, string>): string {
  if (find(element, (inner) => attribute(inner, "data-footnote-ref") !== undefined)) return "";
  const text = element.childNodes.map(inlineText).join("");
  const signs = [...text].map((sign) => forms.get(sign));
  return signs.every((sign) => sign !== undefined) ? signs.join("") : text;
}

function isNotText(element: Element): boolean {
  return (
    NOT_TEXT.has(element.tagName) ||
    attribute(element, "aria-hidden") === "true" ||
    attribute(element, "data-footnote-backref") !== undefined ||
    NOT_TEXT_CLASSES.some((name) => hasClass(element, name))
  );
}

/** White space as a browser shows it, without the invisible spaces that the theme puts into headings. */
function seen(text: string): string {
  return text.replaceAll("\u200b", "").replace(/[ \t\n\r\f]+/g, " ").trim();
}

function plainText(node: Node): string {
  if ("value" in node) return node.value;
  return "childNodes" in node ? node.childNodes.map(plainText).join("") : "";
}

/** CSS modules add `_` and a hash to a name. */
function hasClass(element: Element, name: string): boolean {
  const classes = attribute(element, "class");
  return classes !== undefined && classes.split(/\s+/).some((one) => one === name || one.startsWith(`${name}_`));
}

function attribute(element: Element, name: string): string | undefined {
  return element.attrs.find((one) => one.name === name)?.value;
}

function isSelected(tab: Element): boolean {
  return attribute(tab, "aria-selected") === "true";
}

function elements(parent: Element | undefined): Element[] {
  return (parent?.childNodes ?? []).filter((node): node is Element => "tagName" in node);
}

function elementAfter(element: Element): Element | undefined {
  const siblings = elements(element.parentNode as Element);
  return siblings[siblings.indexOf(element) + 1];
}

function find(node: Node, isWanted: (element: Element) => boolean): Element | undefined {
  if ("tagName" in node && isWanted(node)) return node;
  for (const child of "childNodes" in node ? node.childNodes : []) {
    const found = find(child, isWanted);
    if (found) return found;
  }
  return undefined;
}

/** The outermost ones. */
function all(node: Node, isWanted: (element: Element) => boolean): Element[] {
  return "childNodes" in node
    ? node.childNodes.flatMap((child) => ("tagName" in child && isWanted(child) ? child : all(child, isWanted)))
    : [];
}

function zip(keys: string, values: string): [string, string][] {
  const signs = [...values];
  return [...keys].map((key, number) => [key, signs[number] ?? key]);
}
