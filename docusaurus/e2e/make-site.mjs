// Usage: node e2e/make-site.mjs SITE TARGET DOCS
// Builds the site of this folder's SITE, with the files of the folder DOCS among its docs, in the new folder TARGET. The
// plugin is in it as npm would install it: packed, so that a file missing from the package is missing here too.
import { execFileSync } from "node:child_process";
import { cpSync, mkdirSync, readdirSync, symlinkSync } from "node:fs";
import path from "node:path";

const PACKAGE = path.resolve(import.meta.dirname, "..");
const PLUGIN = "docusaurus-plugin-affidavit";

const [site, target, docs] = process.argv.slice(2);
cpSync(path.join(import.meta.dirname, site), target, { recursive: true });
cpSync(docs, path.join(target, "docs"), { recursive: true });
installDependencies(path.join(target, "node_modules"));
installPlugin(path.join(target, "node_modules", PLUGIN));
run(process.execPath, ["node_modules/@docusaurus/core/bin/docusaurus.mjs", "build"], target);

function installDependencies(modules) {
  mkdirSync(modules);
  const installed = path.join(PACKAGE, "node_modules");
  const names = readdirSync(installed).filter((name) => !name.startsWith(".")); // the cache of the bundler is each site's own
  for (const name of names) symlinkSync(path.join(installed, name), path.join(modules, name));
}

function installPlugin(folder) {
  mkdirSync(folder);
  const packed = run("npm", ["pack", "--ignore-scripts", "--silent", "--pack-destination", folder], PACKAGE).trim();
  run("tar", ["-xzf", packed, "--strip-components=1"], folder);
}

function run(command, args, cwd) {
  return execFileSync(command, args, { cwd, encoding: "utf8", stdio: ["ignore", "pipe", "inherit"] });
}
