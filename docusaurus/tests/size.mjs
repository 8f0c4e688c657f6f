/** Builds a site with and without the plugin, and weighs what a reader loads before and when the panel is opened.
 *
 * With the argument `webpack` it takes Docusaurus' older bundler, which is slower and compiles for older browsers. */
import { execFileSync } from "node:child_process";
import { mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import path from "node:path";
import { gzipSync } from "node:zlib";

const PACKAGE = path.resolve(import.meta.dirname, "..");
const SITE = path.join(PACKAGE, "build", "size-site");
const LOCALES = ["en", "de", "hi"]; // the last has the longest texts
const BEFORE_OPENING_BYTES_MAX = 1500;
const OPENING_BYTES_MAX = process.argv.includes("webpack") ? 19_500 : 16_000;

writeSite();
const plain = build("plain", false);
const asked = build("asked", true);
let isTooLarge = false;
for (const locale of LOCALES) {
  const before = weight(loaded(asked, locale)) - weight(loaded(plain, locale));
  const opening = weight(lazy(asked, locale));
  console.log(`${locale}: ${before} bytes before it is opened (at most ${BEFORE_OPENING_BYTES_MAX}), ${opening} when it is (at most ${OPENING_BYTES_MAX}), gzipped`);
  isTooLarge ||= before > BEFORE_OPENING_BYTES_MAX || opening > OPENING_BYTES_MAX || opening === 0;
}
process.exitCode = isTooLarge ? 1 : 0;

function writeSite() {
  rmSync(SITE, { recursive: true, force: true });
  mkdirSync(path.join(SITE, "docs"), { recursive: true });
  writeFileSync(path.join(SITE, "package.json"), "{}");
  writeFileSync(path.join(SITE, "docs/index.md"), "# A page\n\nOf one sentence.\n");
  writeFileSync(path.join(SITE, "docusaurus.config.js"), `export default ${JSON.stringify({
    title: "Size", url: "https://example.org", baseUrl: "/", onBrokenLinks: "ignore", ...(!process.argv.includes("webpack") && { future: { faster: true, v4: true } }),
    i18n: { defaultLocale: LOCALES[0], locales: LOCALES },
    themes: ["@docusaurus/theme-classic"],
  }).slice(0, -1)}, plugins: [["@docusaurus/plugin-content-docs", { routeBasePath: "/" }], ...(process.env.ASKED ? [${JSON.stringify(PACKAGE)}] : [])] };\n`);
}

function build(name, isAsked) {
  const outDir = path.join(SITE, name);
  const core = path.dirname(createRequire(import.meta.url).resolve("@docusaurus/core/package.json"));
  execFileSync(process.execPath, [path.join(core, "bin/docusaurus.mjs"), "build", "--out-dir", outDir], {
    cwd: SITE, stdio: ["ignore", "ignore", "inherit"],
    env: { ...process.env, ASKED: isAsked ? "1" : "", DOCUSAURUS_NO_PERSISTENT_CACHE: "1" },
  });
  return outDir;
}

/** The page itself and all that it names. */
function loaded(outDir, locale) {
  const html = readFileSync(path.join(folder(outDir, locale), "index.html"), "utf8");
  const names = [...html.matchAll(/(?:src|href)="?(\/[^\s">]*assets\/[^\s">]+\.(?:js|css))/g)].map(([, url]) => path.join(outDir, url));
  return [...new Set(names)];
}

function lazy(outDir, locale) {
  const first = new Set(loaded(outDir, locale));
  const folderOfScripts = path.join(folder(outDir, locale), "assets/js");
  return readdirSync(folderOfScripts).map((name) => path.join(folderOfScripts, name))
    .filter((file) => !first.has(file) && /affidavit-thread|problem\.unreadable/.test(readFileSync(file, "utf8")));
}

function folder(outDir, locale) {
  return locale === LOCALES[0] ? outDir : path.join(outDir, locale);
}

function weight(files) {
  return files.reduce((bytes, file) => bytes + gzipSync(readFileSync(file), { level: 9 }).length, 0);
}
