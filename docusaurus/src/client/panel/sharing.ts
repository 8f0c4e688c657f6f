/** An answer as text for elsewhere, and links that ask its question again. */
import type { Texts } from "../../texts/en.js";
import type { Answer } from "../stream.js";
import { distinct, numberOf, pageLabel, parts } from "./answer/citing.js";
import type { Asking } from "./conversation.js";
import { fill, nameOf, percentOf } from "./wording.js";

const SHARED = /[#?&]affidavit-ask=([^&]*)(?:&affidavit-about=([^&]*))?/;

/** The question is in the fragment, which browsers send to nobody. A hash router's own fragment stays before it. */
export function linkTo({ question, query = question, selection }: Asking, href: string): string {
  const { page, route } = placeIn(href);
  const about = selection ? `&affidavit-about=${encodeURIComponent(selection)}` : "";
  return `${page}${route ? `${route}?` : "#"}affidavit-ask=${encodeURIComponent(query)}${about}`;
}

/** The question that a link has brought, taken out of the address so that a reload does not ask it again. */
export function takeShared(): Asking | undefined {
  const [, question, selection] = SHARED.exec(location.hash) ?? [];
  if (!question) return undefined;
  const { page, route } = placeIn(location.href);
  history.replaceState(history.state, "", page + route);
  try {
    return { question: decodeURIComponent(question), selection: selection ? decodeURIComponent(selection) : undefined };
  } catch {
    return undefined; // somebody has cut the link
  }
}

function placeIn(href: string): { page: string; route: string } {
  const [page = "", fragment = ""] = href.split(/#(.*)/s);
  return { page, route: fragment.startsWith("/") ? `#${fragment.split(/[?#]/)[0]}` : "" };
}

/** The answer with the numbers of its sources, and a list of them. */
export function plainText(question: string, { answer, citations, confidence_level: level, confidence_score: score }: Answer, texts: Texts): string {
  const listed = distinct(citations);
  const told = parts(answer, citations).map((part) => (typeof part === "string" ? part : ` [${numberOf(part, listed)}]`)).join("").trim();
  const sources = listed.map((citation, at) => {
    const page = pageLabel(citation) && `, ${fill(texts.page, { page: citation.page })}`;
    return `[${at + 1}] ${nameOf(citation)}${page}: “${citation.excerpt}” ${new URL(citation.url, location.origin).href}`;
  });
  const warning = level === "low" ? `${fill(texts.low, { percent: percentOf(score ?? 0) })}. ${texts.lowMeans}` : "";
  return [question, warning, told, sources.join("\n")].filter(Boolean).join("\n\n");
}
