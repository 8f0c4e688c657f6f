/** Keeps what the reader reads where it is in the window, while the page's layout makes room. */

const BLOCKS = "#__docusaurus article :is(h1,h2,h3,h4,h5,h6,p,li,pre,tr,img,figure,summary)";

export function keepingPlace(change: () => void): void {
  const place = placeOf();
  const before = place?.getBoundingClientRect().top;
  change();
  if (before !== undefined) scrollBy({ top: place!.getBoundingClientRect().top - before, behavior: "instant" });
}

/** What is selected, else the block that begins where one reads: nearest to a third of the window's height. */
function placeOf(): Element | Range | undefined {
  const selected = getSelection();
  const range = selected?.isCollapsed === false ? selected.getRangeAt(0) : undefined;
  if (range && isInWindow(range)) return range;
  const blocks = Array.from(document.querySelectorAll(BLOCKS)).filter(isInWindow);
  const distances = blocks.map((block) => Math.abs(block.getBoundingClientRect().top - innerHeight / 3));
  return blocks[distances.indexOf(Math.min(...distances))];
}

function isInWindow(place: Element | Range): boolean {
  const { top, height } = place.getBoundingClientRect();
  const covered = document.querySelector(".navbar")?.getBoundingClientRect().bottom ?? 0;
  return height > 0 && top >= covered && top < innerHeight;
}
