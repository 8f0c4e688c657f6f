/** Questions to begin with, from the headings of the page that the reader is on. */
import type { Texts } from "../../texts/en.js";
import { fill, unique } from "./wording.js";

const EXAMPLES_MAX = 3;
const HEADINGS = ".theme-doc-markdown :is(h1,h2)"; // a blog is not in the book

export function examples(texts: Texts): string[] {
  return questions(Array.from(document.querySelectorAll(HEADINGS), ({ textContent }) => textContent ?? ""), texts);
}

/** A heading that is a question is asked as it is. Those come first, because the book answers them for certain. Headings that
 * every book has say nothing of this one. */
export function questions(headings: string[], texts: Texts): string[] {
  const empty = ["", ...texts.noExamples.toLowerCase().split(", ")];
  const names = unique(headings.map((heading) => heading.replace(/\u200b/g, "").trim())).filter((name) => !empty.includes(name.toLowerCase()));
  const asking = names.filter((name) => /[?？؟]$/.test(name));
  const others = names.filter((name) => !asking.includes(name)).map((heading) => fill(texts.example, { heading }));
  return [...asking, ...others].slice(0, EXAMPLES_MAX);
}
