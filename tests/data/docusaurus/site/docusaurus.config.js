// One site, many builds: the variables of the environment choose docs and options.
const fs = require('fs');
const path = require('path');
const env = process.env;
const name = env.VARIANT || 'rules';
const json = (key, fallback) => (env[key] ? JSON.parse(env[key]) : fallback);

// Writes what Docusaurus itself knows about every page.
function truthPlugin() {
  let loaded;
  return {
    name: 'truth',
    allContentLoaded({allContent}) {
      loaded = allContent['docusaurus-plugin-content-docs'].default.loadedVersions[0];
    },
    postBuild({outDir, routesPaths}) {
      const docs = loaded.docs.map((doc) => ({
        source: path.relative(loaded.contentPath, doc.source.replace('@site', __dirname)),
        id: doc.id,
        slug: doc.slug,
        permalink: doc.permalink,
        title: doc.title,
        unlisted: doc.unlisted,
      }));
      fs.mkdirSync('truth', {recursive: true});
      fs.writeFileSync(`truth/${name}.json`, JSON.stringify({outDir, routesPaths, docs}, null, 1));
    },
  };
}

module.exports = {
  title: 'Truth',
  url: 'https://example.org',
  baseUrl: env.BASE_URL || '/',
  trailingSlash: json('TRAILING_SLASH', undefined),
  onBrokenLinks: 'ignore',
  onBrokenAnchors: 'ignore',
  onDuplicateRoutes: 'throw',
  future: json('FUTURE', {v4: {removeLegacyPostBuildHeadAttribute: true}, faster: true}),
  markdown: {
    mermaid: true,
    hooks: {onBrokenMarkdownLinks: 'warn', onBrokenMarkdownImages: 'warn'},
    ...json('MARKDOWN', {}),
  },
  plugins: [
    ['@docusaurus/plugin-content-docs', {path: env.DOCS || 'docs', ...json('DOCS_OPTIONS', {})}],
    truthPlugin,
  ],
  themes: ['@docusaurus/theme-classic', '@docusaurus/theme-mermaid'],
};
