// Usage: node e2e/make-site.mjs SITE TARGET DOCS
// Builds the site of this folder's SITE, with the files of the folder DOCS among its docs, in the new folder TARGET. The
// plugin is in it as npm would install it: packed, so that a file missing from the package is missing here too. A site that
// has a lock file has a Docusaurus of its own, which is installed; the others have this folder's.
import { execFileSync } from "node:child_process";
import { cpSync, existsSync, mkdirSync, readdirSync, symlinkSync } from "node:fs";
import path from "node:path";

const PACKAGE = path.resolve(import.meta.dirname, "..");
const PLUGIN = "docusaurus-plugin-affidavit";

const [site, target, docs] = process.argv.slice(2);
cpSync(path.join(import.meta.dirname, site), target, { recursive: true });
cpSync(docs, path.join(target, "docs"), { recursive: true });
if (existsSync(path.join(target, "package-lock.json"))) installAll(target);
else {
  linkDependencies(path.join(target, "node_modules"));
  unpackPlugin(path.join(target, "node_modules", PLUGIN));
}
run(process.execPath, ["node_modules/@docusaurus/core/bin/docusaurus.mjs", "build"], target);

function installAll(folder) {
  run("npm", ["ci", "--ignore-scripts", "--no-audit", "--no-fund"], folder);
  run("npm", ["install", "--no-save", "--ignore-scripts", "--no-audit", "--no-fund", packed(folder)], folder);
}

function linkDependencies(modules) {
  mkdirSync(modules);
  const installed = path.join(PACKAGE, "node_modules");
  const names = readdirSync(installed).filter((name) => !name.startsWith(".")); // the cache of the bundler is each site's own
  for (const name of names) symlinkSync(path.join(installed, name), path.join(modules, name));
}

function unpackPlugin(folder) {
  mkdirSync(folder);
  run("tar", ["-xzf", packed(folder), "--strip-components=1"], folder);
}

function packed(folder) {
  const name = run("npm", ["pack", "--ignore-scripts", "--silent", "--pack-destination", folder], PACKAGE).trim();
  return path.join(folder, name);
}

function run(command, args, cwd) {
  return execFileSync(command, args, { cwd, encoding: "utf8", stdio: ["ignore", "pipe", "inherit"] });
}
