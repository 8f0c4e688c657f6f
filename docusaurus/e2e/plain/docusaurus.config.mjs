// Nothing but somebody's docs and the plugin.
export default {
  title: "A Book",
  url: "https://example.org",
  baseUrl: "/",
  onBrokenLinks: "ignore",
  onBrokenAnchors: "ignore",
  future: { v4: { removeLegacyPostBuildHeadAttribute: true }, faster: true },
  markdown: { mermaid: true, hooks: { onBrokenMarkdownLinks: "ignore", onBrokenMarkdownImages: "ignore" } },
  plugins: ["@docusaurus/plugin-content-docs", "docusaurus-plugin-affidavit"],
  themes: ["@docusaurus/theme-classic"],
};
