// Links of the manual to files of the repository that are not pages. On a Git host they lead there; the site has no such file,
// so it names the file instead.
import path from "node:path";
import { fileURLToPath } from "node:url";

const DOCS = path.dirname(path.dirname(fileURLToPath(import.meta.url)));
const REPOSITORY = path.dirname(DOCS);

export function nameOutsideFiles() {
  return (tree, { path: page }) => nameIn(tree, path.dirname(page));
}

function nameIn(node, folder) {
  if (!node.children) return;
  node.children = node.children.flatMap((child) => {
    nameIn(child, folder);
    const target = child.type === "link" && outside(child.url, folder);
    return target ? named(child.children, target) : child;
  });
}

/** The file's path in the repository, if it is not in docs/. */
function outside(url, folder) {
  if (/^(\w+:|[/#])/.test(url)) return undefined;
  const target = path.resolve(folder, decodeURI(url.split("#")[0]));
  return target.startsWith(DOCS + path.sep) ? undefined : path.relative(REPOSITORY, target);
}

function named(words, target) {
  const file = { type: "inlineCode", value: target };
  const isItsName = words.length === 1 && words[0].value && target.startsWith(words[0].value.replace(/\/$/, ""));
  return isItsName ? [file] : [...words, { type: "text", value: " (" }, file, { type: "text", value: ")" }];
}
