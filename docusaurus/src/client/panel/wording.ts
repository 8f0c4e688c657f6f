import type { Texts } from "../../texts/en.js";
import type { Place, Problem } from "../stream.js";

const OWN_WORDS = ["auth"]; // the engine's are for those who hold a key, and a reader does not

/** A text with its names filled in. */
export function fill(text: string, values: Record<string, string | number>): string {
  return text.replace(/\{(\w+)\}/g, (whole, name: string) => String(values[name] ?? whole));
}

/** The engine's own message if the reader's language is English, else our text for this kind of problem. */
export function detailOf({ kind, detail }: Problem, texts: Texts, locale: string): string {
  const isTheirs = detail && locale.startsWith("en") && !OWN_WORDS.includes(kind);
  return isTheirs ? detail : texts[`problem.${kind}.detail`];
}

export function nameOf({ section, chapter, url }: Place): string {
  return unique([section, chapter]).filter(Boolean).join(" – ") || url;
}

/** Without spreading a set: Docusaurus compiles client code as if only arrays were spread. */
export function unique(names: string[]): string[] {
  return names.filter((name, at) => names.indexOf(name) === at);
}

/** Rounds down, so that no score is shown at a better level. */
export function percentOf(score: number): number {
  return Math.floor(score * 100 + 1e-9);
}

/** "in 40 seconds", "in 3 minutes": in the reader's language, and never less than it is. */
export function timeFrom(waitS: number, locale: string): string {
  const format = new Intl.RelativeTimeFormat(locale);
  if (waitS < 120) return format.format(waitS, "second");
  return waitS < 7200 ? format.format(Math.ceil(waitS / 60), "minute") : format.format(Math.ceil(waitS / 3600), "hour");
}
