import assert from "node:assert/strict";
import { mkdtempSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { test } from "node:test";
import { configInsertions } from "../../src/create/config.js";
import { create } from "../../src/create/create.js";
import { RECORD, undo } from "../../src/create/record.js";
import { withInsertions } from "../../src/create/site.js";

const WANTED = { engine: "http://127.0.0.1:8000" };
const PACKAGE = '{\n  "name": "site",\n  "scripts": {\n    "build": "docusaurus build"\n  },\n  "dependencies": { "@docusaurus/core": "^3.6.0" }\n}\n';
const TYPED = `import type {Config} from '@docusaurus/types';
// The plugins: [ of this site
const config: Config = {
  title: 'A {Robot} Course', // with "plugins: [" in a comment
  url: \`https://\${process.env.HOST}/\`,
  presets: [['classic', {docs: {include: ['**/*.md']}}]],
  webpack: {rules: [{test: /[/{"]+\\.js$/}]},
  plugins: [
    'plugin-ideal-image',
  ],
};

export default config;
`;

function folder(files: Record<string, string>): string {
  const site = mkdtempSync(path.join(tmpdir(), "affidavit-create-"));
  for (const [name, text] of Object.entries({ "package.json": PACKAGE, ...files })) writeFileSync(path.join(site, name), text);
  return site;
}

function contents(site: string): Record<string, string> {
  return Object.fromEntries(readdirSync(site).sort().map((name) => [name, readFileSync(path.join(site, name), "utf8")]));
}

function wired(text: string, book?: string): string {
  return withInsertions(text, configInsertions(text, "docusaurus.config.js", book));
}

test("a site gets the plugin, a script, a sample of the environment and an ignored .env", () => {
  const site = folder({ "docusaurus.config.ts": TYPED });
  assert.deepEqual(create(site, { ...WANTED, book: "my-book" }), ["package.json", "docusaurus.config.ts", ".env.example", ".gitignore"]);
  const made = contents(site);
  assert.ok(made["docusaurus.config.ts"]?.includes(`  plugins: [\n    ["docusaurus-plugin-affidavit", { book: "my-book" }],\n    'plugin-ideal-image',`));
  assert.equal(JSON.parse(made["package.json"] ?? "").scripts.affidavit, "docusaurus-plugin-affidavit serve");
  assert.match(made[".env.example"] ?? "", /^AFFIDAVIT_KEY=\nAFFIDAVIT_GATEWAY_ENGINE=http:\/\/127\.0\.0\.1:8000\n/m);
  assert.equal(made[".gitignore"], ".env\n");
});

const SITES: Record<string, Record<string, string>> = {
  "typed": { "docusaurus.config.ts": TYPED },
  "with Windows' line ends": { "docusaurus.config.js": TYPED.replace("import type {Config} from '@docusaurus/types';", "").replace(": Config", "").replaceAll("\n", "\r\n"), ".gitignore": "build\r\n" },
  "without plugins": { "docusaurus.config.mjs": "export default {\n\ttitle: 'x',\n};\n", ".env.example": "A=1" },
  "in one line": { "docusaurus.config.js": "module.exports = { title: 'x', plugins: [] }" },
  "with a package.json without scripts, and no last line end": { "docusaurus.config.cjs": "module.exports = {title: 'x'};", "package.json": '\ufeff{"dependencies":{"@docusaurus/core":"3.0.0"}}' },
};
for (const [name, files] of Object.entries(SITES)) {
  test(`what was created is undone byte for byte, and creating twice changes nothing: a site ${name}`, () => {
    const site = folder(files);
    const before = contents(site);
    assert.ok(create(site, WANTED).length >= 3);
    const after = contents(site);
    JSON.parse((after["package.json"] ?? "").replace(/^\ufeff/, ""));
    assert.deepEqual(create(site, WANTED), []);
    assert.deepEqual(contents(site), after);
    undo(site);
    assert.deepEqual(contents(site), before);
  });
}

test("what the site's people wrote since stays when it is undone", () => {
  const site = folder({ "docusaurus.config.ts": TYPED });
  create(site, WANTED);
  const changed = contents(site);
  writeFileSync(path.join(site, "docusaurus.config.ts"), `// ours\n${changed["docusaurus.config.ts"]}`);
  writeFileSync(path.join(site, ".gitignore"), `${changed[".gitignore"]}dist\n`);
  undo(site);
  assert.equal(contents(site)["docusaurus.config.ts"], `// ours\n${TYPED}`);
  assert.equal(contents(site)[".gitignore"], "dist\n");
});

test("if what was created is no longer as it was, nothing is undone, and what to remove is said", () => {
  const site = folder({ "docusaurus.config.js": "module.exports = { title: 'x', plugins: [] }" });
  create(site, { ...WANTED, book: "my-book" });
  writeFileSync(path.join(site, ".env.example"), "# ours\nAFFIDAVIT_KEY=\nAFFIDAVIT_GATEWAY_ENGINE=http://engine\n");
  const config = path.join(site, "package.json");
  writeFileSync(config, readFileSync(config, "utf8").replace(' serve",', ' serve --port 1",\n"x": "docusaurus-plugin-affidavit serve",'));
  const before = contents(site);
  assert.throws(() => undo(site), /package\.json was changed since.*"affidavit": "docusaurus-plugin-affidavit serve"/s);
  assert.deepEqual(contents(site), before);
  assert.ok(RECORD in before);
});

const CONFIGS: [string, string][] = [
  ["export default { plugins: ['a'] };", `export default { plugins: ["docusaurus-plugin-affidavit", 'a'] };`],
  ["export default {};", `export default {plugins: ["docusaurus-plugin-affidavit"]};`],
  ["const c = {\n    title: 'x',\n};\nexport default c satisfies Config;", `const c = {\n    plugins: ["docusaurus-plugin-affidavit"],\n    title: 'x',\n};\nexport default c satisfies Config;`],
  ["module.exports = {\n  'plugins': [\n  ].filter(Boolean),\n}", `module.exports = {\n  'plugins': [\n    "docusaurus-plugin-affidavit"\n  ].filter(Boolean),\n}`],
  ["export default { a: 1, // plugins: [\n  plugins: [/* none yet */] }", `export default { a: 1, // plugins: [\n  plugins: ["docusaurus-plugin-affidavit"/* none yet */] }`],
  ["export default { ...base, plugins: [x / 2, y / 3] }", `export default { ...base, plugins: ["docusaurus-plugin-affidavit", x / 2, y / 3] }`],
  ["export default { themeConfig: { plugins: [1] }, plugins: [2] }", `export default { themeConfig: { plugins: [1] }, plugins: ["docusaurus-plugin-affidavit", 2] }`],
  ["export default { plugins: ['docusaurus-plugin-affidavit'] }", "export default { plugins: ['docusaurus-plugin-affidavit'] }"],
];
for (const [before, after] of CONFIGS) test(`a configuration is extended: ${before}`, () => assert.equal(wired(before), after));

const STRANGE = [
  "export default async function config() { return { plugins: [] }; }",
  "export default { ...base };",
  "export default { plugins: [], ...base };",
  "export default { plugins };",
  "export default { plugins: process.env.CI ? [] : ['a'] };",
  "export default { plugins: [], 'plugins': [] };",
  "export default merge(base, { plugins: [] });",
  "const c = make();\nexport default c;",
  "export default { plugins: [",
  "",
];
for (const text of STRANGE) {
  test(`a configuration that is not understood is refused with what to write: ${text}`, () => {
    assert.throws(() => wired(text, "my-book"), /docusaurus\.config\.js .*Add this to its plugins yourself: plugins: \[\["docusaurus-plugin-affidavit", \{ book: "my-book" \}\]\]/s);
  });
}

const REFUSED: [string, Record<string, string>, RegExp][] = [
  ["no site", {}, /no docusaurus\.config/],
  ["two configurations", { "docusaurus.config.js": "x", "docusaurus.config.ts": "x" }, /several configurations/],
  ["Docusaurus 2", { "package.json": '{"dependencies": {"@docusaurus/core": "^2.4.1"}}', "docusaurus.config.js": "module.exports = {}" }, /Docusaurus \^2\.4\.1.*3 or newer/],
  ["no Docusaurus", { "package.json": "{}", "docusaurus.config.js": "module.exports = {}" }, /does not name @docusaurus\/core/],
  ["a broken package.json", { "package.json": "{", "docusaurus.config.js": "module.exports = {}" }, /not valid JSON/],
  ["another script of that name", { "package.json": PACKAGE.replace('"build"', '"affidavit": "x", "build"'), "docusaurus.config.js": "module.exports = {}" }, /another script "affidavit"/],
];
for (const [name, files, why] of REFUSED) {
  test(`refused in words, and nothing is written: ${name}`, () => {
    const site = folder(files);
    const before = contents(site);
    assert.throws(() => create(site, WANTED), why);
    assert.deepEqual(contents(site), before);
  });
}

test("there is nothing to undo where nothing was created", () => {
  assert.throws(() => undo(folder({})), /nothing to undo/);
});
