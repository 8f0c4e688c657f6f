/** The address by which readers are counted for the rate limit. */

const IPV4 = /^(?:(?:25[0-5]|2[0-4]\d|1?\d?\d)(?:\.(?!$)|$)){4}$/;

/** An IPv4 address as it is; of an IPv6 address the /64 network, because one subscriber owns all of it. Null if it is not
 * an address. */
export function readerOf(address: string): string | null {
  const plain = plainAddress(address);
  if (plain === null || !plain.includes(":")) return plain;
  return inShort(groupsOf(plain).slice(0, 4).join(":") + "::");
}

/** Canonical form: without a port or a zone, and IPv4-mapped IPv6 as IPv4. */
export function plainAddress(address: string): string | null {
  const bare = address.trim().replace(/^\[([^\]]*)\](:\d+)?$/, "$1").replace(/^(\d+\.\d+\.\d+\.\d+):\d+$/, "$1");
  if (IPV4.test(bare)) return bare;
  const short = inShort(bare.replace(/%.*$/, ""));
  return short && (ipv4Inside(short) ?? short);
}

/** The URL parser knows every way to write an IPv6 address, on every platform. */
function inShort(address: string): string | null {
  if (!address.includes(":") || !URL.canParse(`http://[${address}]/`)) return null;
  return new URL(`http://[${address}]/`).hostname.slice(1, -1);
}

function ipv4Inside(short: string): string | null {
  const groups = groupsOf(short);
  if (groups.slice(0, 5).some((group) => group !== "0") || groups[5] !== "ffff") return null;
  return groups.slice(6).flatMap(bytesOf).join(".");
}

function bytesOf(group: string): number[] {
  const value = Number.parseInt(group, 16);
  return [value >> 8, value & 255];
}

function groupsOf(short: string): string[] {
  const [head = "", tail] = short.split("::").map((part) => (part ? part.split(":") : []));
  if (tail === undefined) return [...head];
  return [...head, ...Array<string>(8 - head.length - tail.length).fill("0"), ...tail];
}
