#include "resident.h"
#include "ring_layout.h"
#include "ring.h"
#include "feed.h"

// feed_sum: the sum of a packet's bytes: every byte is read, and nothing else is done. It is what benchmarks feed. The row has a word for each item of the group, and need not
// be where the CPU sees it.
PS_FN void sum(ps_packet *k) {
	__global const uchar *p = k->payload + k->off;
	__global uint *part = (__global uint *)k->row;
	uint item = ps_local_id(), items = ps_local_size(), s = 0;
	ulong done = 0;
	if (((ulong)p & 15) == 0) {
		__global const uint4 *w = (__global const uint4 *)p;
		done = k->len / 16 * 16;
		for (ulong i = item; i < k->len / 16; i += items) {
			uint4 v = w[i];
			v = (v & 0x00ff00ff) + ((v >> 8) & 0x00ff00ff);
			v = (v & 0xffff) + (v >> 16);
			s += v.x + v.y + v.z + v.w;
		}
	}
	for (ulong i = done + item; i < k->len; i += items) s += p[i];
	if (k->row_len / 4 < items) {
		k->flags |= PS_DROP;
		return;
	}
	part[item] = s;
	ps_barrier();
	if (item != 0) return;
	for (uint i = 1; i < items; i++) s += part[i];
	k->value = s;
}
PS_FEED(feed_sum, sum)
