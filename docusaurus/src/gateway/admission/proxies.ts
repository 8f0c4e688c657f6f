/** Trusted proxies: only their X-Forwarded-For names the reader. */
import { BlockList, isIP } from "node:net";
import { plainAddress } from "./address.js";

export class TrustedProxies {
  readonly #list = new BlockList();

  /** Addresses and networks, such as `10.0.0.7` or `fd00::/8`. */
  constructor(named: readonly string[]) {
    for (const name of named) this.#add(name);
  }

  /** Read from the right: each proxy has added whom it saw. The first that is no proxy of ours is the reader; what stands
   * left of it the reader may have made up. */
  readerBehind(peer: string, forwardedFor: string): string {
    const seen = forwardedFor.split(",");
    let reader = plainAddress(peer) ?? peer;
    while (seen.length > 0 && this.includes(reader)) {
      const before = plainAddress(seen.pop() ?? "");
      if (before === null) break;
      reader = before;
    }
    return reader;
  }

  includes(address: string): boolean {
    const plain = plainAddress(address);
    return plain !== null && this.#list.check(plain, familyOf(plain));
  }

  #add(name: string): void {
    const [address = "", bits, ...more] = name.split("/");
    if (!isIP(address) || more.length > 0) throw new Error(`"${name}" is not an IP address or a network.`);
    if (bits === undefined) return this.#list.addAddress(address, familyOf(address));
    const count = /^\d{1,3}$/.test(bits) ? Number(bits) : -1;
    if (count < 0 || count > (isIP(address) === 4 ? 32 : 128)) throw new Error(`"${name}" is not a network.`);
    this.#list.addSubnet(address, count, familyOf(address));
  }
}

function familyOf(address: string): "ipv4" | "ipv6" {
  return isIP(address) === 4 ? "ipv4" : "ipv6";
}
