// The oldest Docusaurus that the plugin takes, with React 18.
module.exports = {
  title: "Irrigation by Robots",
  url: "https://example.org",
  baseUrl: "/",
  plugins: [
    ["@docusaurus/plugin-content-docs", { routeBasePath: "/" }],
    ["docusaurus-plugin-affidavit", { exclude: ["internal/**"], position: "top-start", zIndex: 300 }],
  ],
  themes: ["@docusaurus/theme-classic"],
};
