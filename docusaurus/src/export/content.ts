/** `affidavit-content.json`: the site as Docusaurus itself resolved it, for `affidavit ingest`. One file for each book. */
import { open, readFile, rename } from "node:fs/promises";
import path from "node:path";
import type { Props } from "@docusaurus/types";
import { localeBooks, versionBook } from "../book.js";
import type { Options } from "../options.js";
import { admonitionLabels, readBody, type Section } from "./body.js";
import { withDiagrams } from "./diagrams.js";
import { hasHashRouter, hashAddress, PAGES_ONLY, withPages } from "./hash.js";
import { removeCopies } from "./lazy.js";
import { docsPages, type DocsPage } from "./pages.js";

export const FILENAME = "affidavit-content.json";
const SCHEMA_VERSION = 1;
// What the engine filters by, and how an author wants the page cited. The file is as public as the site.
const FRONT_MATTER_KEYS = ["module", "difficulty", "tags", "page"];
const NAMED_IN_WARNINGS = 5;

type Naming = Pick<Options, "book" | "books">;

/** The pages of one book. */
interface Edition {
  file: string;
  book: { id: string; locale: string; version: string };
  pages: DocsPage[];
}

export async function writeContent(props: Props, options: Naming & Pick<Options, "exclude">): Promise<void> {
  if (process.env[PAGES_ONLY]) return;
  const missing: string[] = [];
  const built = hasHashRouter(props) ? await withPages(props) : props;
  for (const edition of editionsOf(props, docsPages(built, options.exclude), options)) {
    const written = await writeEdition(props, edition, missing);
    if (written > 0) tell(props, edition, written);
    else if (missing.length === 0) console.warn(`[affidavit] ${edition.file} is empty: this site has no docs pages.`);
  }
  if (built === props) await removeCopies(props);
  if (missing.length > 0) warnOfWhatIsMissing(missing);
}

/** The last versions of all docs are one book, also if it is empty; each other version is one of its own. */
function editionsOf(props: Props, pages: DocsPage[], options: Naming): Edition[] {
  const { siteConfig, i18n } = props;
  const locale = i18n.currentLocale;
  const books = localeBooks(options, siteConfig.title, locale, locale === i18n.defaultLocale);
  const last = pages.filter((page) => page.isLastVersion);
  const whole = { file: FILENAME, book: { id: books.book, locale, version: last[0]?.version ?? "current" }, pages: last };
  const versions = [...new Set(pages.filter((page) => !page.isLastVersion).map(({ version }) => version))];
  const others = versions.map((version) => ({
    file: FILENAME.replace(".", `-${version}.`),
    book: { id: versionBook(books, version), locale, version },
    pages: pages.filter((page) => !page.isLastVersion && page.version === version),
  }));
  return apart([whole, ...others]);
}

function apart(editions: Edition[]): Edition[] {
  const named = new Map<string, Edition>();
  for (const edition of editions) {
    const { id, locale, version } = edition.book;
    const same = named.get(id);
    if (same) {
      throw new Error(
        `docusaurus-plugin-affidavit: the versions ${same.book.version} and ${version} would both be the book ${id}. ` +
          `Name one in the options: books: { "${locale}/${version}": "another-id" }`,
      );
    }
    named.set(id, edition);
  }
  return editions;
}

/** How many pages; one at a time, so that a site of any size needs the memory of one page. */
async function writeEdition(props: Props, { file: name, book, pages }: Edition, missing: string[]): Promise<number> {
  const target = path.join(props.outDir, name);
  const file = await open(`${target}.part`, "w");
  let written = 0;
  try {
    // The gateway reads this line alone.
    await file.write(`{"version": ${SCHEMA_VERSION}, "site": ${JSON.stringify(siteOf(props))}, "book": ${JSON.stringify(book)}, "pages": [`);
    for (const page of pages) {
      const exported = await exportPage(props, page);
      if (exported) await file.write(`${written++ > 0 ? "," : ""}\n${JSON.stringify(exported)}`);
      else missing.push(page.source);
    }
    await file.write("\n]}\n");
  } finally {
    await file.close();
  }
  await rename(`${target}.part`, target);
  return written;
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
    permalink: hasHashRouter(props) ? hashAddress(props, page.permalink) : page.permalink,
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

function tell({ siteDir, outDir }: Props, { file, book }: Edition, written: number): void {
  const place = path.relative(siteDir, path.join(outDir, file));
  console.log(`[affidavit] ${written} page(s) for: affidavit ingest ${place} --book ${book.id}`);
}

function warnOfWhatIsMissing(missing: string[]): void {
  const more = missing.length > NAMED_IN_WARNINGS ? ", …" : "";
  console.warn(
    `[affidavit] ${missing.length} page(s) cannot be asked: the build contains no text of them ` +
      `(${missing.slice(0, NAMED_IN_WARNINGS).join(", ")}${more}). ` +
      'A custom theme must keep the class "theme-doc-markdown" around the text.',
  );
}
