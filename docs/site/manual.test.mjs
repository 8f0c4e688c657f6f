// What the site makes of the pages, and which of them its sidebar has. `make test` runs it; it needs nothing but Node.
import assert from "node:assert/strict";
import { readdirSync } from "node:fs";
import path from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { nameOutsideFiles } from "./outside.mjs";
import sidebars from "./sidebars.mjs";
import { boxTables } from "./tables.mjs";

const DOCS = path.dirname(path.dirname(fileURLToPath(import.meta.url)));
const FOLDERS = ["", "tutorials", "how-to", "reference", "explanation"]; // of decisions/ the sidebar has all

test("a link to a file outside of docs/ becomes the file's name, and every other link stays", () => {
  const kept = ["../architecture.md#layers", "rotate-keys.md", "openapi.json", "#api-keys", "https://example.org/../x", "mailto:a@example.org"];
  for (const url of kept) assert.deepEqual(shown(link(url, "words")), [link(url, "words")], url);
  assert.deepEqual(shown(link("../../config/engine.toml", "config/engine.toml")), [code("config/engine.toml")]);
  assert.deepEqual(shown(link("../../engine/http/widgets/__init__.py", "engine/http/widgets/")), [code("engine/http/widgets/__init__.py")]);
  assert.deepEqual(shown(link("../../CHANGELOG.md#010", "changelog")), [text("changelog"), text(" ("), code("CHANGELOG.md"), text(")")]);
});

test("a link is found in a list in a table too", () => {
  const table = { type: "tableCell", children: [{ type: "listItem", children: [link("../../Makefile", "Makefile")] }] };
  assert.deepEqual(shown(table), [{ type: "tableCell", children: [{ type: "listItem", children: [code("Makefile")] }] }]);
});

test("a table scrolls in a box that the keyboard reaches", () => {
  const table = { type: "element", tagName: "table", children: [] };
  const tree = { type: "root", children: [{ type: "element", tagName: "li", children: [table] }] };
  boxTables()(tree);
  const [box] = tree.children[0].children;
  assert.deepEqual([box.tagName, box.properties.tabIndex, box.children], ["div", 0, [table]]);
});

test("every page of docs/ is in the sidebar, once", () => {
  const written = FOLDERS.flatMap((folder) =>
    readdirSync(path.join(DOCS, folder)).filter((name) => name.endsWith(".md")).map((name) => path.join(folder, name.slice(0, -3))));
  assert.deepEqual(sidebars.manual.flatMap(pagesOf).sort(), written.sort(), "docs/site/sidebars.mjs");
});

function pagesOf(item) {
  return typeof item === "string" ? [item] : (item.items ?? []).flatMap(pagesOf);
}

function shown(node) {
  const tree = { type: "root", children: [structuredClone(node)] };
  nameOutsideFiles()(tree, { path: path.join(DOCS, "how-to", "a-page.md") });
  return tree.children;
}

function link(url, words) {
  return { type: "link", url, children: [text(words)] };
}

function text(value) {
  return { type: "text", value };
}

function code(value) {
  return { type: "inlineCode", value };
}
