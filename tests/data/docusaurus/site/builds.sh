#!/bin/sh
# Run in a folder that holds this folder's files, node_modules, and copies of ../rules (as
# rules), ../formats (as formats) and the book's docs (as physical-ai).
set -e
build() { # name, then VARIABLE=value pairs
  name=$1; shift
  # The bundler's cache does not notice options that come from the environment.
  rm -rf node_modules/.cache .docusaurus "build/$name"
  env CI=true VARIANT="$name" "$@" npx --no-install docusaurus build --out-dir "build/$name" > "$name.log" 2>&1
  node extract.cjs "$name"
}
SUBSET='"include":["01-intro.md","3_tools.md","10 - spaced name.md","2024-01-02-news.md","UPPER Case Page.md","Введение.md","component.mdx","basics/**/*.md","02. chapters/**/*.md","03-readme/*.md","06-lesson/*.md","guide/*.md","generated/*.md","10-slugs/**/*.md","11-ids/*.md","index-tricks/*.md"]'
PLAIN="DOCS_OPTIONS={$SUBSET}"
ROOT="DOCS_OPTIONS={$SUBSET,\"routeBasePath\":\"/\"}"

build rules DOCS=rules
build physical-ai DOCS=physical-ai

build default DOCS=rules "$PLAIN"
build route-base-path-root DOCS=rules "$ROOT"
build route-base-path-nested DOCS=rules "DOCS_OPTIONS={$SUBSET,\"routeBasePath\":\"learn/book\"}"
build trailing-slash-true DOCS=rules "$PLAIN" TRAILING_SLASH=true
build trailing-slash-false DOCS=rules "$PLAIN" TRAILING_SLASH=false
build base-url DOCS=rules "$PLAIN" BASE_URL=/book/
build base-url-route-base-path-root DOCS=rules "$ROOT" BASE_URL=/book/
build base-url-route-base-path-root-trailing-slash-true DOCS=rules "$ROOT" BASE_URL=/book/ TRAILING_SLASH=true
build base-url-route-base-path-root-trailing-slash-false DOCS=rules "$ROOT" BASE_URL=/book/ TRAILING_SLASH=false
build number-prefix-parser-false DOCS=rules "DOCS_OPTIONS={$SUBSET,\"numberPrefixParser\":false}"
build docs-folder-basics DOCS=rules/basics
build docs-folder-readme DOCS=rules/03-readme

build formats-default DOCS=formats
build formats-detect DOCS=formats 'MARKDOWN={"format":"detect"}'
build formats-md DOCS=formats 'MARKDOWN={"format":"md"}'
build formats-maintain-case DOCS=formats 'MARKDOWN={"anchors":{"maintainCase":true}}'
build formats-emoji-false DOCS=formats 'MARKDOWN={"emoji":false}'
# classic.md and html-comment.md do not compile with mdx1Compat off.
build formats-v4 DOCS=formats 'FUTURE={"v4":true}' 'DOCS_OPTIONS={"exclude":["classic.md","html-comment.md"]}'
build formats-v4-detect DOCS=formats 'FUTURE={"v4":true}' 'MARKDOWN={"format":"detect"}'
