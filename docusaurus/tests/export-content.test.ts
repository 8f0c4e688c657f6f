import assert from "node:assert/strict";
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { test, type TestContext } from "node:test";
import type { Props } from "@docusaurus/types";
import { FILENAME, writeContent } from "../src/export/content.js";

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
}

/** A built site as Docusaurus hands it to `postBuild`. */
function site({ docs, built, baseUrl = "/", trailingSlash, sidebar = [] }: Made): Props {
  const outDir = mkdtempSync(path.join(tmpdir(), "affidavit-"));
  for (const [route, file] of Object.entries(built)) {
    mkdirSync(path.dirname(path.join(outDir, file)), { recursive: true });
    writeFileSync(path.join(outDir, file), `<div class=theme-doc-markdown><h1>${route}</h1><p>Text.</div>`);
  }
  const version = {
    versionName: "current",
    sidebars: { book: sidebar },
    docs: docs.map((doc) => ({
      source: `@site/docs/${doc.id}.md`, title: doc.id, unlisted: false, sidebar: "book", frontMatter: {}, ...doc,
    })),
  };
  return {
    outDir,
    siteDir: outDir,
    siteConfig: { title: "Book", url: "https://example.org", baseUrl, trailingSlash },
    i18n: { currentLocale: "en" },
    codeTranslations: {},
    routesPaths: Object.keys(built),
    plugins: [
      { name: "docusaurus-plugin-content-docs", content: { loadedVersions: [version] } },
      { name: "docusaurus-plugin-content-blog", content: { blogPosts: [] } },
    ],
  } as unknown as Props;
}

async function exported(props: Props) {
  await writeContent(props);
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
