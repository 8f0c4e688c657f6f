// A wide table scrolls in a box of its own, by the keyboard too; the page beside it stays where it is.
export function boxTables() {
  return boxIn;
}

function boxIn(node) {
  if (!node.children) return;
  node.children = node.children.map((child) => {
    boxIn(child);
    if (child.tagName !== "table") return child;
    return { type: "element", tagName: "div", properties: { className: ["table-box"], tabIndex: 0 }, children: [child] };
  });
}
