// Docusaurus builds no pages for this router. The site opens the panel by a button of its own.
export default {
  title: "Irrigation by Robots",
  url: "https://example.org",
  baseUrl: "/irrigation/",
  future: { experimental_router: "hash", faster: true, v4: true },
  plugins: [
    ["@docusaurus/plugin-content-docs", { routeBasePath: "/" }],
    ["docusaurus-plugin-affidavit", { exclude: ["internal/**"], button: false }],
  ],
  themes: ["@docusaurus/theme-classic"],
  themeConfig: { navbar: { items: [{ type: "html", value: "<button data-affidavit-open>Ask the book</button>" }] } },
};
