// A site that has what sites have: locales, versions, two docs, a base URL, a Root and a search box of its own.
export default {
  title: "A Robot Course",
  url: "https://example.org",
  baseUrl: "/book/",
  trailingSlash: false,
  onBrokenLinks: "ignore", // it has no home page
  onBrokenAnchors: "throw",
  i18n: { defaultLocale: "en", locales: ["en", "de", "ar"] },
  future: { v4: { removeLegacyPostBuildHeadAttribute: true }, faster: true },
  markdown: { mermaid: true },
  plugins: [
    ["@docusaurus/plugin-content-docs", { lastVersion: "current", versions: { current: { label: "2.0" } } }],
    ["@docusaurus/plugin-content-docs", { id: "course", path: "course", routeBasePath: "course" }],
    ["docusaurus-plugin-affidavit", { book: "robot-course", gateway: process.env.E2E_GATEWAY }], // of `docusaurus start`
  ],
  themes: ["@docusaurus/theme-classic", "@docusaurus/theme-search-algolia"],
  themeConfig: {
    algolia: { appId: "NOBODY", apiKey: "public-search-key", indexName: "nothing" },
    navbar: { title: "A Robot Course", items: [{ type: "docsVersionDropdown" }, { type: "localeDropdown" }] },
  },
};
