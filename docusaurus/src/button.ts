/** Where the floating button stands: what differs from the style in `client/mount.ts`. */
import { ABOVE_THE_PAGE, type Options } from "./options.js";

const BELOW_NAVBAR = "calc(var(--ifm-navbar-height) + 1.3rem)";
const BACK_TO_TOP = ".theme-back-to-top-button.theme-back-to-top-button{bottom:1.3rem}"; // as the theme has it: nothing is below it

export function buttonStyle({ button, position, zIndex }: Pick<Options, "button" | "position" | "zIndex">): string | undefined {
  const [block, inline] = position.split("-");
  const place = block === "top" ? `inset-block:${BELOW_NAVBAR} auto` : "inset-block:auto 1.3rem";
  const side = inline === "start" ? "inset-inline:1.3rem auto" : "inset-inline:auto 1.3rem";
  const moved = position === "bottom-end" ? "" : `.affidavit-button{${place};${side}}`;
  const raised = zIndex === ABOVE_THE_PAGE ? "" : `.affidavit-button{z-index:${zIndex}}`;
  const freed = button && !moved ? "" : BACK_TO_TOP;
  return moved + raised + freed || undefined;
}
