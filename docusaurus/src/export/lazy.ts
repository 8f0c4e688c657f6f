/** Lazy tabs: while pages are built, `EveryTab` adds what is in the closed ones; afterwards it is removed. */
import { readFile, rename, writeFile } from "node:fs/promises";
import { fileURLToPath } from "node:url";
import type { Props } from "@docusaurus/types";
import { parse, type DefaultTreeAdapterTypes } from "parse5";
import { builtFile } from "./pages.js";

type Node = DefaultTreeAdapterTypes.Node;
type Element = DefaultTreeAdapterTypes.Element;

const MARK = "data-affidavit-tabs";
const TABS = "@theme/Tabs";
const EVERY_TAB = fileURLToPath(new URL("EveryTab.js", import.meta.url));

/** For the bundler of the pages, not for that of the browser. */
export function everyTab(alias: unknown): Record<string, string> {
  const tabs = (alias as Record<string, unknown> | undefined)?.[TABS];
  return typeof tabs === "string" ? { [TABS]: EVERY_TAB, "@affidavit/tabs": tabs } : {};
}

export function isCopy(element: Element): boolean {
  return element.attrs.some(({ name }) => name === MARK);
}

/** Every page of the site, also those that are not exported. */
export async function removeCopies(props: Props): Promise<void> {
  for (const route of props.routesPaths) {
    const file = builtFile(props, route);
    const html = await readFile(file, "utf8").catch(() => "");
    if (!html.includes(MARK)) continue;
    await writeFile(`${file}.part`, withoutCopies(html));
    await rename(`${file}.part`, file);
  }
}

export function withoutCopies(html: string): string {
  const parts: string[] = [];
  let at = 0;
  for (const { startOffset, endOffset } of copies(parse(html, { sourceCodeLocationInfo: true }))) {
    parts.push(html.slice(at, startOffset));
    at = endOffset;
  }
  return [...parts, html.slice(at)].join("");
}

/** Where the outermost ones stand. */
function copies(node: Node): { startOffset: number; endOffset: number }[] {
  if ("tagName" in node && isCopy(node)) return node.sourceCodeLocation ? [node.sourceCodeLocation] : [];
  return "childNodes" in node ? node.childNodes.flatMap(copies) : [];
}
