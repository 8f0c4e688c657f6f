import assert from "node:assert/strict";
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { test, type TestContext } from "node:test";
import type { Props } from "@docusaurus/types";
import { FILENAME, writeContent } from "../../src/export/content.js";

const OPTIONS = { books: {}, exclude: [] };

interface Doc {
  id: string;
  permalink: string;
  source?: string;
  title?: string;
  unlisted?: boolean;
  sidebar?: string;
  frontMatter?: Record<string, unknown>;
}
interface Made {
  docs: Doc[];
  /** Routes with the files that Docusaurus made of them. */
  built: Record<string, string>;
  baseUrl?: string;
  trailingSlash?: boolean;
  sidebar?: unknown[];
  title?: string;
  locale?: string;
  /** Docs of versions that are not the last. */
  older?: Record<string, Doc[]>;
}

/** A built site as Docusaurus hands it to `postBuild`. */
function site({ docs, built, baseUrl = "/", trailingSlash, sidebar = [], title = "Book", locale = "en", older = {} }: Made): Props {
  const outDir = mkdtempSync(path.join(tmpdir(), "affidavit-"));
  for (const [route, file] of Object.entries(built)) {
    mkdirSync(path.dirname(path.join(outDir, file)), { recursive: true });
    writeFileSync(path.join(outDir, file), `<div class=theme-doc-markdown><h1>${route}</h1><p>Text.</div>`);
  }
  const version = (versionName: string, folder: string, those: Doc[]) => ({
    versionName,
    isLast: versionName === "current",
    contentPath: path.join(outDir, folder),
    sidebars: { book: sidebar },
    docs: those.map((doc) => ({
      source: `@site/${folder}/${doc.id}.md`, title: doc.id, unlisted: false, sidebar: "book", frontMatter: {}, ...doc,
    })),
  });
  const others = Object.entries(older).map(([name, those]) => version(name, `versioned_docs/version-${name}`, those));
  const loadedVersions = [version("current", "docs", docs), ...others];
  return {
    outDir,
    siteDir: outDir,
    siteConfig: { title, url: "https://example.org", baseUrl, trailingSlash },
    i18n: { currentLocale: locale, defaultLocale: "en" },
    codeTranslations: {},
    routesPaths: Object.keys(built),
    plugins: [
      { name: "docusaurus-plugin-content-docs", content: { loadedVersions } },
      { name: "docusaurus-plugin-content-blog", content: { blogPosts: [] } },
    ],
  } as unknown as Props;
}

async function exported(props: Props, options = {}) {
  await writeContent(props, { ...OPTIONS, ...options });
  return JSON.parse(readFileSync(path.join(props.outDir, FILENAME), "utf8"));
}

function warnings(context: TestContext): string[] {
  const said: string[] = [];
  context.mock.method(console, "warn", (text: string) => said.push(text));
  return said;
}

const FILES: [string, Partial<Made>][] = [
  ["docs/a/index.html", {}],
  ["docs/a.html", { trailingSlash: false }],
  ["docs/a/index.html", { trailingSlash: true }],
  ["docs/a.html", { trailingSlash: false, baseUrl: "/book/" }],
];
for (const [file, options] of FILES) {
  test(`a page is found at ${file} with ${JSON.stringify(options)}`, async () => {
    const base = options.baseUrl ?? "/";
    const route = `${base}docs/a${options.trailingSlash ? "/" : ""}`;
    const { pages } = await exported(site({ docs: [{ id: "a", permalink: `${base}docs/a` }], built: { [route]: file }, ...options }));
    assert.deepEqual(pages.map(({ permalink }: { permalink: string }) => permalink), [route]);
  });
}

test("the entry of a site, an address that ends in .html and one with spaces are found", async () => {
  const built = { "/book/": "index.html", "/book/x.html": "x.html", "/book/wéek one": "wéek one/index.html" };
  const docs = Object.keys(built).map((permalink, id) => ({ id: `${id}`, permalink }));
  const { pages } = await exported(site({ docs, built, baseUrl: "/book/" }));
  assert.equal(pages.length, 3);
});

test("a page says where it stands and only what the engine can use of its front matter", async () => {
  const frontMatter = { module: 3, difficulty: "beginner", tags: ["gait"], page: "42", custom_edit_url: "https://git.internal", author: "x" };
  const docs = [{ id: "a", permalink: "/docs/a", title: "*A*", frontMatter }];
  const { version, site: about, pages } = await exported(site({ docs, built: { "/docs/a": "docs/a/index.html" } }));
  assert.equal(version, 1);
  assert.deepEqual(about, { title: "Book", url: "https://example.org", baseUrl: "/", trailingSlash: null });
  assert.deepEqual(pages, [{
    permalink: "/docs/a", source: "docs/a.md", title: "/docs/a", version: "current", locale: "en", position: null,
    frontMatter: { module: 3, difficulty: "beginner", tags: ["gait"], page: "42" },
    sections: [{ level: 1, anchor: null, path: ["/docs/a"], blocks: [{ kind: "prose", text: "Text." }] }],
  }]);
});

test("a title of the front matter is the title", async () => {
  const docs = [{ id: "a", permalink: "/a", title: "Own", frontMatter: { title: "Own" } }];
  assert.equal((await exported(site({ docs, built: { "/a": "a/index.html" } }))).pages[0].title, "Own");
});

test("pages come in the order of the sidebar, others after them; unlisted ones do not", async () => {
  const sidebar = [
    { type: "category", link: { type: "doc", id: "c" }, items: [{ type: "doc", id: "b" }, { type: "link", href: "/x" }] },
    { type: "doc", id: "a" },
  ];
  const docs = ["a", "b", "c", "d"].map((id) => ({ id, permalink: `/${id}`, ...(id === "d" && { sidebar: "none" }) }));
  const built = Object.fromEntries("abcde".split("").map((id) => [`/${id}`, `${id}/index.html`]));
  const { pages } = await exported(site({ docs: [...docs, { id: "e", permalink: "/e", unlisted: true }], built, sidebar }));
  assert.deepEqual(
    pages.map(({ permalink, position }: { permalink: string; position: number | null }) => [permalink, position]),
    [["/c", 1], ["/b", 2], ["/a", 3], ["/d", null]],
  );
});

test("the same source at two addresses is one page, since ingest takes a name once", async () => {
  const docs = ["/one", "/two"].map((permalink) => ({ id: "a", permalink }));
  const { pages } = await exported(site({ docs, built: { "/one": "one/index.html", "/two": "two/index.html" } }));
  assert.deepEqual(pages.map(({ permalink }: { permalink: string }) => permalink), ["/one"]);
});

test("pages that were not built, or in which no text is found, are named", async (context) => {
  const said = warnings(context);
  const props = site({ docs: ["a", "b", "c"].map((id) => ({ id, permalink: `/${id}` })), built: { "/a": "a/index.html", "/b": "b/index.html" } });
  writeFileSync(path.join(props.outDir, "b/index.html"), "<main>Swizzled.</main>");
  assert.equal((await exported(props)).pages.length, 1);
  assert.match(said.join("\n"), /2 page\(s\) cannot be asked: .*\(docs\/b\.md, docs\/c\.md\)/);
});

test("a site without docs has an export that says so, and nothing half-written stays", async (context) => {
  const said = warnings(context);
  const props = site({ docs: [], built: {} });
  assert.deepEqual((await exported(props)).pages, []);
  assert.match(said.join("\n"), /is empty/);
  assert.deepEqual(readdirSync(props.outDir), [FILENAME]);
});

test("each version is a book of its own, and the first line of each file says which", async () => {
  const built = { "/docs/a": "docs/a/index.html", "/docs/1.0/a": "docs/1.0/a/index.html" };
  const older = { "1.0": [{ id: "a", permalink: "/docs/1.0/a" }] };
  const props = site({ docs: [{ id: "a", permalink: "/docs/a" }], older, built, title: "Our Röbots!", baseUrl: "/" });
  await writeContent(props, OPTIONS);
  const heads = ["affidavit-content.json", "affidavit-content-1.0.json"].map((name) => {
    const [line = ""] = readFileSync(path.join(props.outDir, name), "utf8").split("\n");
    return JSON.parse(`${line}]}`);
  });
  assert.deepEqual(heads.map(({ book }) => book), [
    { id: "our-robots", locale: "en", version: "current" }, { id: "our-robots-1-0", locale: "en", version: "1.0" },
  ]);
  assert.equal(heads[0].site.baseUrl, "/");
  assert.deepEqual(readdirSync(props.outDir).filter((name) => name.endsWith(".part")), []);
});

const NAMES: [object, string, string, string][] = [
  [{}, "en", "book", "book-1-0"],
  [{}, "pt-BR", "book-pt-br", "book-pt-br-1-0"],
  [{ book: "course" }, "de", "course-de", "course-de-1-0"],
  [{ book: "course", books: { "de": "kurs" } }, "de", "kurs", "kurs-1-0"],
  [{ books: { "de/1.0": "kurs-alt", "en/1.0": "course-old" } }, "de", "book-de", "kurs-alt"],
];
for (const [options, locale, last, old] of NAMES) {
  test(`the books of ${locale} with ${JSON.stringify(options)} are ${last} and ${old}`, async () => {
    const built = { "/a": "a/index.html", "/1.0/a": "1.0/a/index.html" };
    const props = site({ docs: [{ id: "a", permalink: "/a" }], older: { "1.0": [{ id: "a", permalink: "/1.0/a" }] }, built, locale });
    assert.equal((await exported(props, options)).book.id, last);
    assert.equal(JSON.parse(readFileSync(path.join(props.outDir, "affidavit-content-1.0.json"), "utf8")).book.id, old);
  });
}

test("two versions that would be one book are refused, with what to write", async () => {
  const older = { "1.0": [{ id: "a", permalink: "/x" }], "1-0": [{ id: "b", permalink: "/y" }] };
  await assert.rejects(exported(site({ docs: [], older, built: {} })), /1\.0 and 1-0 would both be the book book-1-0.*"en\/1-0"/s);
});

test("what is excluded is in no export: the globs are of files in the docs folder of every version", async () => {
  const built = { "/a": "a/index.html", "/in/b": "in/b/index.html", "/1.0/in/b": "1.0/in/b/index.html" };
  const docs = [{ id: "a", permalink: "/a" }, { id: "in/b", permalink: "/in/b" }];
  const props = site({ docs, older: { "1.0": [{ id: "in/b", permalink: "/1.0/in/b" }] }, built });
  const { pages } = await exported(props, { exclude: ["in/**"] });
  assert.deepEqual(pages.map(({ permalink }: { permalink: string }) => permalink), ["/a"]);
  assert.ok(!readdirSync(props.outDir).includes("affidavit-content-1.0.json"));
});
