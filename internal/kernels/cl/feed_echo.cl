#include "resident.h"
#include "ring_layout.h"
#include "ring.h"
#include "feed.h"
#include "headers.h"

// feed_echo: the answer to a UDP frame, in its place. Addresses of Ethernet and IP and the ports change sides, the time to live (hop limit) is 64 again, and the checksum of the
// IPv4 header is made anew; that of UDP stays right, since it sums both addresses and both ports. What is not UDP, a fragment, cut off, or has a wrong IPv4 header checksum is dropped.
PS_FN void swap(__global uchar *a, __global uchar *b, uint n) {
	for (uint i = 0; i < n; i++) {
		uchar x = a[i];
		a[i] = b[i];
		b[i] = x;
	}
}
PS_FN void echo(ps_packet *k) {
	if (ps_local_id() != 0) return;
	__global uchar *p = k->payload + k->off;
	ps_headers h;
	if (!ps_parse(p, k->len, &h) || h.version == 0 || h.proto != 17 || h.fragment || h.end - h.l4 < 8 || (h.version == 4 && ps_sum(p + h.l3, h.l4 - h.l3, 0, 1) != 0xffff)) {
		k->flags |= PS_DROP;
		return;
	}
	__global uchar *ip = p + h.l3;
	swap(p, p + 6, 6);
	swap(p + h.l4, p + h.l4 + 2, 2);
	if (h.version == 4) {
		swap(ip + 12, ip + 16, 4);
		ip[8] = 64;
		ip[10] = ip[11] = 0;
		uint sum = ~ps_sum(ip, h.l4 - h.l3, 0, 1);
		ip[10] = (uchar)(sum >> 8);
		ip[11] = (uchar)sum;
	} else {
		swap(ip + 8, ip + 24, 16);
		ip[7] = 64;
	}
	k->value = h.end - h.l4;
}
PS_FEED(feed_echo, echo)
