/** `affidavit-content.json`: the site as Docusaurus itself resolved it, for `affidavit ingest`. */
import { open, readFile, rename } from "node:fs/promises";
import path from "node:path";
import type { Props } from "@docusaurus/types";
import { admonitionLabels, readBody, type Section } from "./body.js";
import { withDiagrams } from "./diagrams.js";
import { docsPages, type DocsPage } from "./pages.js";

export const FILENAME = "affidavit-content.json";
const SCHEMA_VERSION = 1;
// What the engine filters by, and how an author wants the page cited. The file is as public as the site.
const FRONT_MATTER_KEYS = ["module", "difficulty", "tags", "page"];
const NAMED_IN_WARNINGS = 5;

/** One page at a time, so that a site of any size needs the memory of one page. */
export async function writeContent(props: Props): Promise<void> {
  const target = path.join(props.outDir, FILENAME);
  const file = await open(`${target}.part`, "w");
  const missing: string[] = [];
  let separator = "";
  try {
    await file.write(`{"version": ${SCHEMA_VERSION}, "site": ${JSON.stringify(siteOf(props))}, "pages": [`);
    for (const page of docsPages(props)) {
      const exported = await exportPage(props, page);
      if (exported) {
        await file.write(`${separator}\n${JSON.stringify(exported)}`);
        separator = ",";
      } else {
        missing.push(page.source);
      }
    }
    await file.write("\n]}\n");
  } finally {
    await file.close();
  }
  await rename(`${target}.part`, target);
  warnOfWhatIsMissing(missing, separator === "");
}

function siteOf({ siteConfig }: Props) {
  const { title, url, baseUrl, trailingSlash } = siteConfig;
  return { title, url, baseUrl, trailingSlash: trailingSlash ?? null };
}

async function exportPage(props: Props, page: DocsPage) {
  const html = page.file && (await readIfThere(page.file));
  const body = html && readBody(html, page.title, admonitionLabels(props.codeTranslations));
  if (!body) return null;
  return {
    permalink: page.permalink,
    source: page.source,
    title: page.hasOwnTitle ? page.title : (body.title ?? page.title),
    version: page.version,
    locale: props.i18n.currentLocale,
    position: page.position,
    frontMatter: pick(page.frontMatter, FRONT_MATTER_KEYS),
    sections: await withSource(props.siteDir, page.source, body.sections),
  };
}

async function withSource(siteDir: string, source: string, sections: Section[]): Promise<Section[]> {
  const file = path.resolve(siteDir, source);
  const text = await readIfThere(file);
  return text === null ? sections : withDiagrams(sections, text, file, siteDir);
}

async function readIfThere(file: string): Promise<string | null> {
  try {
    return await readFile(file, "utf8");
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "ENOENT") return null;
    throw error;
  }
}

function pick(from: Record<string, unknown>, keys: string[]): Record<string, unknown> {
  return Object.fromEntries(keys.filter((key) => key in from).map((key) => [key, from[key]]));
}

function warnOfWhatIsMissing(missing: string[], isEmpty: boolean): void {
  if (missing.length > 0) {
    const more = missing.length > NAMED_IN_WARNINGS ? ", …" : "";
    console.warn(
      `[affidavit] ${missing.length} page(s) cannot be asked: the build contains no text of them ` +
        `(${missing.slice(0, NAMED_IN_WARNINGS).join(", ")}${more}). ` +
        'A custom theme must keep the class "theme-doc-markdown" around the text; the hash router is not supported.',
    );
  } else if (isEmpty) {
    console.warn(`[affidavit] ${FILENAME} is empty: this site has no docs pages.`);
  }
}
