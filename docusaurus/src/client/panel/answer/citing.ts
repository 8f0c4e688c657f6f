import type { Citation } from "../../stream.js";

const LOW_MARK = /^\[(?:Low confidence: check the sources|Geringe Sicherheit: Prüfen Sie die Quellen)\.\]/; // the panel says this in its own way

export type Part = string | Citation;

/** The text with its citations in the places of their marks. Text that does not match a mark exactly stays. */
export function parts(text: string, citations: Citation[]): Part[] {
  const found: Part[] = [];
  let from = LOW_MARK.exec(text)?.[0]?.length ?? 0;
  for (const citation of citations) {
    const mark = markOf(citation);
    const at = text.indexOf(mark, from);
    if (at < 0) continue;
    found.push(text.slice(from, at).trimEnd(), citation);
    from = at + mark.length;
  }
  return [...found, text.slice(from)].filter((part) => part !== "");
}

/** The page's label, where it is more than the engine's stand-in for one: the last name in the address. */
export function pageLabel({ page, url }: Citation): string {
  return url.split(/\?|#(?!\/)/)[0]!.split("/").filter(Boolean).at(-1) === page ? "" : page;
}

/** The citations as they are listed: each quote once, such as the header that all rows of a table cite. */
export function distinct(citations: Citation[]): Citation[] {
  return citations.filter((one, at) => numberOf(one, citations.slice(0, at)) === 0);
}

/** The number of a quote in the list, from 1 on; 0 if it is not there. */
export function numberOf({ url, excerpt }: Citation, citations: Citation[]): number {
  return citations.findIndex((one) => one.url === url && one.excerpt === excerpt) + 1;
}

/** As the engine writes it. */
function markOf({ section, page, excerpt }: Citation): string {
  return `[Source: ${section} (Page ${page}) - "${excerpt}"]`;
}
