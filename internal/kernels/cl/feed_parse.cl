#include "resident.h"
#include "ring_layout.h"
#include "ring.h"
#include "feed.h"
#include "headers.h"

// feed_parse: what a frame carries, and which class it is of. The value of the result is, from the lowest byte: the protocol of IP, the version of IP (0: not IP), the offset of
// what IP carries (16 bits), destination port, source port (UDP and TCP, not in fragments). The hash is FNV-1a (32 bits) of addresses, ports and protocol. Weights are rules of
// four 32-bit numbers: protocol (0: any), lowest and highest destination port, flow id. The first that matches gives the flow; without one it stays. What is cut off or
// malformed is dropped.
PS_FN uint fnv(uint h, __global const uchar *p, ulong n) {
	for (ulong i = 0; i < n; i++) h = (h ^ p[i]) * 16777619u;
	return h;
}
PS_FN void parse(ps_packet *k) {
	if (ps_local_id() != 0) return;
	__global const uchar *p = k->payload + k->off;
	ps_headers h;
	if (!ps_parse(p, k->len, &h)) {
		k->flags |= PS_DROP;
		return;
	}
	if (h.version == 0) return;
	uint to = 0, from = 0, hash = 2166136261u;
	hash = h.version == 4 ? fnv(hash, p + h.l3 + 12, 8) : fnv(hash, p + h.l3 + 8, 32);
	if (!h.fragment && (h.proto == 6 || h.proto == 17)) {
		if (h.end - h.l4 < (h.proto == 6 ? 20 : 8)) {
			k->flags |= PS_DROP;
			return;
		}
		from = ps_be16(p + h.l4);
		to = ps_be16(p + h.l4 + 2);
		hash = fnv(hash, p + h.l4, 4);
	}
	k->hash = (hash ^ h.proto) * 16777619u;
	k->value = (ulong)h.proto | (ulong)h.version << 8 | h.l4 << 16 | (ulong)to << 32 | (ulong)from << 48;
	for (ulong i = 0; i + 16 <= k->weights_len; i += 16) {
		uint proto = ps_le32(k->weights + i);
		if ((proto == 0 || proto == h.proto) && to >= ps_le32(k->weights + i + 4) && to <= ps_le32(k->weights + i + 8)) {
			k->flow = ps_le32(k->weights + i + 12);
			break;
		}
	}
}
PS_FEED(feed_parse, parse)
