/**
 * Diagrams: only a browser draws them, so the built page lacks them. They are taken from the source and inserted where it
 * has them. All other code is taken from the built page.
 */
import { readFile } from "node:fs/promises";
import path from "node:path";
import type { Block, Section } from "./body.js";

/** The content of a source file, in order. */
interface Part {
  kind: "heading" | "text" | "code";
  text: string;
  isDiagram: boolean;
}

/** A heading or a block of the page, after which another block can be inserted. */
interface Place {
  section: number;
  block: number;
  kind: Part["kind"];
  folded: string;
}

const HEADING = -1;
const FRONT_MATTER = /^---\n[^]*?\n---[ \t]*(?:\n|$)/;
const MARKERS = String.raw`(?:[ \t>]|[-*+][ \t]|\d+[.)][ \t])*`;
const FENCE = String.raw`^(?<margin>${MARKERS})(?<mark>\x60{3,}|~{3,})(?<info>[^\n\x60]*)\n(?<code>(?:.*\n)*?)${MARKERS}\k<mark>[\x60~]*[ \t]*$`;
const COMMENT = String.raw`<!--[^]*?-->|\{/\*[^]*?\*/\}`;
const PIECES = new RegExp(`${FENCE}|${COMMENT}|(?<line>[^\n]+?)(?=<!--|\\{/\\*|$)`, "gm");
const MARKUP = /<[^>]*>|\]\([^)]*\)|\{#[^}]*\}|^[ \t]*(?::::\w+|\d+[.)][ \t])/g;
const IMPORT = /^import\s+(\w+)\s+from\s+['"]([^'"]+\.mdx?)['"]/;
const IMPORTS_DEEP = 8; // a part may import itself

/** The sections, with the diagrams of the source that are not on the page. */
export async function withDiagrams(
  sections: Section[], source: string, file: string, siteDir: string,
): Promise<Section[]> {
  const parts = await partsOf(source, file, siteDir);
  if (!parts.some((part) => part.isDiagram)) return sections;
  const places = placesOf(sections);
  const diagrams = new Map<Place, Block[]>();
  let at = -1;
  let before = "";
  for (const part of parts) {
    const words = folded(part.text);
    const isHere = (place: Place) => place.kind === part.kind && place.folded === words;
    const shown = places.findIndex((place, index) => index > at && isHere(place));
    if (part.kind !== "text" && shown >= 0) at = shown;
    if (part.isDiagram && shown < 0) {
      at = placeAfter(places, Math.max(at, 0), before);
      const place = places[at];
      if (place) diagrams.set(place, [...(diagrams.get(place) ?? []), { kind: "code", text: part.text }]);
    }
    before = wordsBefore(part, shown >= 0) || (part.kind === "text" ? before : "");
  }
  return withBlocks(sections, places, diagrams);
}

async function partsOf(source: string, file: string, siteDir: string, deep = 0): Promise<Part[]> {
  const imports = new Map<string, string>();
  const parts: Part[] = [];
  for (const { groups = {} } of source.replaceAll("\r\n", "\n").replace(FRONT_MATTER, "").matchAll(PIECES)) {
    const { line, code } = groups;
    const [, name = "", from = ""] = IMPORT.exec(line ?? "") ?? [];
    const used = imports.get(/^\s*<(\w+)/.exec(line ?? "")?.[1] ?? "");
    if (name) imports.set(name, resolveImport(from, file, siteDir));
    else if (used && deep < IMPORTS_DEEP) parts.push(...(await partsOfFile(used, siteDir, deep + 1)));
    else if (code !== undefined) parts.push(codePart(code, groups));
    else if (line) parts.push(linePart(line));
  }
  return parts;
}

async function partsOfFile(file: string, siteDir: string, deep: number): Promise<Part[]> {
  const source = await readFile(file, "utf8").catch(() => "");
  return partsOf(source, file, siteDir, deep);
}

function resolveImport(from: string, file: string, siteDir: string): string {
  return from.startsWith("@site/") ? path.join(siteDir, from.slice("@site/".length)) : path.resolve(path.dirname(file), from);
}

function codePart(code: string, { margin = "", info = "" }: Record<string, string | undefined>): Part {
  const indent = new RegExp(`^[ \\t>]{0,${margin.length}}`, "gm");
  return {
    kind: "code",
    text: code.replace(indent, "").trimEnd(),
    isDiagram: /^\s*mermaid\b/.test(info),
  };
}

function linePart(line: string): Part {
  const heading = /^ {0,3}#{1,6}[ \t]+(.*)/.exec(line);
  return { kind: heading ? "heading" : "text", text: heading?.[1] ?? line, isDiagram: false };
}

function placesOf(sections: Section[]): Place[] {
  return sections.flatMap(({ path: headings, blocks }, section) => [
    { section, block: HEADING, kind: "heading" as const, folded: folded(headings.at(-1) ?? "") },
    ...blocks.map(({ kind, text }, block) => ({
      section, block, kind: kind === "code" ? ("code" as const) : ("text" as const), folded: folded(text),
    })),
  ]);
}

/** Behind the last words before it; if the page writes them differently, at the end of the section. */
function placeAfter(places: Place[], at: number, before: string): number {
  if (!before) return at;
  const next = places.findIndex((place, index) => index > at && place.kind === "heading");
  const end = next < 0 ? places.length : next;
  const found = places.slice(at, end).findIndex((place) => place.folded.includes(before));
  return found < 0 ? end - 1 : at + found;
}

/** The last words before what follows a part, unless the part itself was found on the page. */
function wordsBefore({ kind, text, isDiagram }: Part, isShown: boolean): string {
  if (kind === "text") return folded(text);
  return kind === "heading" || isDiagram || isShown ? "" : folded(text.slice(text.lastIndexOf("\n") + 1));
}

function withBlocks(sections: Section[], places: Place[], diagrams: Map<Place, Block[]>): Section[] {
  return sections.map((section, number) => {
    const own = places.filter((place) => place.section === number);
    const blocks = own.flatMap((place) => {
      const block = section.blocks[place.block];
      return [...(block ? [block] : []), ...(diagrams.get(place) ?? [])];
    });
    return { ...section, blocks };
  });
}

/** Normalises what Markdown and HTML write differently, to compare words. */
function folded(text: string): string {
  return text.replace(MARKUP, " ").normalize("NFKC").toLowerCase().replace(/[^\p{L}\p{N}]+/gu, "");
}
