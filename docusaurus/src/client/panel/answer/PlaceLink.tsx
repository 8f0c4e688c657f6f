import type { MouseEvent, ReactNode } from "react";
import type { Place } from "../../stream.js";
import { useGuide } from "../Guide.js";
import { nameOf } from "../wording.js";

interface Props {
  place: Place;
  excerpt: string;
  label?: string;
  children?: ReactNode;
}

/** Pages of this site open through its router, others in a new tab; an address that is not http(s) is not a link. */
export function PlaceLink({ place, excerpt, label, children = nameOf(place) }: Props) {
  const { targetOf, follow } = useGuide();
  const target = targetOf(place.url);
  if (!target) return <span>{children}</span>;
  if (!target.isOnSite) return <a href={target.href} target="_blank" rel="noopener noreferrer" aria-label={label}>{children}</a>;

  function onClick(event: MouseEvent): void {
    if (event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
    event.preventDefault();
    follow({ href: target!.href, name: nameOf(place), excerpt });
  }
  return <a href={target.href} onClick={onClick} aria-label={label}>{children}</a>;
}
