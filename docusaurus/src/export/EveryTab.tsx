/**
 * Stands for the theme's Tabs while pages are built, and adds a copy of lazy ones that has the closed tabs too. The export
 * reads it, and `lazy.ts` takes it out of the page again: what a browser gets is what the theme made.
 */
import Tabs from "@affidavit/tabs";

export * from "@affidavit/tabs";

export default function EveryTab(props: { lazy?: boolean }) {
  if (!props.lazy) return <Tabs {...props} />;
  return (
    <>
      <Tabs {...props} />
      <div data-affidavit-tabs="" hidden>
        <Tabs {...props} lazy={false} />
      </div>
    </>
  );
}
