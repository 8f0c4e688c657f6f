import { useGuide } from "../Guide.js";

interface Props {
  text: () => string;
  label: string;
  done: string;
}

/** Nothing where a page cannot copy: browsers let only sites with https do it. */
export function Copy({ text, label, done }: Props) {
  const { tell } = useGuide();
  if (typeof navigator !== "object" || !navigator.clipboard) return null;
  const copy = () => navigator.clipboard.writeText(text()).then(() => tell(done), () => undefined);
  return <button type="button" className="affidavit-plain" onClick={copy}>{label}</button>;
}
