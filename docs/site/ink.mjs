// How code is coloured: few colours, those of manual.css, so that light and dark are one theme.
export const ink = {
  plain: { color: "var(--ink)", backgroundColor: "var(--sheet)" },
  styles: [
    { types: ["comment"], style: { color: "var(--muted)", fontStyle: "italic" } },
    { types: ["string", "attr-value", "char"], style: { color: "var(--green)" } },
    { types: ["keyword", "property", "key", "table", "section"], style: { color: "var(--seal)" } },
  ],
};
