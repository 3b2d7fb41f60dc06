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
		for (ulong i = item; i < k->len / 16; i += 4 * items) { // four ways over the bus at once
			uint4 v[4];
			for (uint j = 0; j < 4; j++) v[j] = i + j * items < k->len / 16 ? w[i + j * items] : (uint4)(0);
			for (uint j = 0; j < 4; j++) {
				v[j] = (v[j] & 0x00ff00ff) + ((v[j] >> 8) & 0x00ff00ff);
				v[j] = (v[j] & 0xffff) + (v[j] >> 16);
				s += v[j].x + v[j].y + v[j].z + v[j].w;
			}
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
