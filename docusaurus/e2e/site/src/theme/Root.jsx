// A site's own Root takes the place of any that a plugin brings.
export default function Root({ children }) {
  return <div data-own-root>{children}</div>;
}
