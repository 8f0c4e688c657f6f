/** The Tabs of the site's theme, or its own. */
declare module "@affidavit/tabs" {
  const Tabs: import("react").ComponentType<{ lazy?: boolean }>;
  export default Tabs;
}
