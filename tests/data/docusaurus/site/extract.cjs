// usage: node extract.cjs <variant>   (after a build of that variant)
// Joins truth/<variant>.json (written by the plugin in the config) with the built HTML
// and writes raw/<variant>.json: [{source, permalink, title, headings}].
const fs = require('fs');
const path = require('path');
const cheerio = require('cheerio');

const variant = process.argv[2];
const {outDir, routesPaths, docs} = JSON.parse(fs.readFileSync(`truth/${variant}.json`, 'utf8'));
const bare = (url) => url.replace(/(.)\/$/, '$1');

// Every built page with a docs body, by its canonical address.
const pages = new Map();
(function walk(dir) {
  for (const entry of fs.readdirSync(dir, {withFileTypes: true})) {
    const file = path.join(dir, entry.name);
    if (entry.isDirectory()) {
      walk(file);
    } else if (file.endsWith('.html')) {
      const $ = cheerio.load(fs.readFileSync(file, 'utf8'));
      const body = $('article .theme-doc-markdown');
      if (!body.length) continue;
      if (body.length !== 1) throw new Error(`${body.length} bodies in ${file}`);
      const canonical = $('link[rel=canonical]').attr('href').replace('https://example.org', '');
      pages.set(bare(canonical), {$, body, canonical});
    }
  }
})(outDir);

const seen = new Set();
const rows = docs.map((doc) => {
  const key = bare(doc.permalink);
  const page = pages.get(key);
  if (!page || seen.has(key)) throw new Error(`no page, or two docs on it: ${doc.source} ${key}`);
  seen.add(key);
  // The route has the site's trailingSlash applied, the docs metadata has not.
  const permalink = routesPaths.find((route) => bare(route) === key);
  if (permalink !== page.canonical) throw new Error(`${permalink} is not ${page.canonical}`);
  const {$, body} = page;
  const headings = body.find('h1,h2,h3,h4,h5,h6').toArray().map((element) => {
    const copy = $(element).clone();
    copy.find('a.hash-link').remove();
    return {
      level: Number(element.name[1]),
      anchor: $(element).attr('id') ?? null,
      text: copy.text().replace(/[ \t\r\n\f]+/g, ' ').replace(/^ | $/g, ''),
    };
  });
  return {source: doc.source, permalink, title: doc.title, headings};
});
for (const key of pages.keys()) if (!seen.has(key)) throw new Error(`page without doc: ${key}`);
rows.sort((a, b) => (a.source < b.source ? -1 : 1));
fs.mkdirSync('raw', {recursive: true});
fs.writeFileSync(`raw/${variant}.json`, JSON.stringify(rows, null, 1) + '\n');
console.log(variant, rows.length, 'pages', rows.reduce((n, r) => n + r.headings.length, 0), 'headings');
