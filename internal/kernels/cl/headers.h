// Headers of a frame: Ethernet with up to two VLAN tags, IPv4 or IPv6 (without extension headers), and where what is behind begins.
typedef struct {
	uint version, proto; // of IP: 4, 6 or 0; and what it carries
	ulong l3, l4, end;   // offsets; end is where the IP packet ends
	int fragment;        // not the first, or not the last
} ps_headers;

// ps_parse reads the headers of the n bytes at p. 0: the frame is cut off or malformed. A frame that is not IP has version 0.
PS_FN int ps_parse(__global const uchar *p, ulong n, ps_headers *h) {
	h->version = h->proto = 0;
	h->l4 = h->end = 0;
	h->fragment = 0;
	ulong at = 12;
	if (n < 14) return 0;
	uint type = ps_be16(p + at);
	for (int tags = 0; tags < 2 && (type == 0x8100 || type == 0x88a8); tags++) {
		at += 4;
		if (!ps_inside(at, 2, n)) return 0;
		type = ps_be16(p + at);
	}
	h->l3 = at + 2;
	__global const uchar *ip = p + h->l3;
	ulong rest = n - h->l3;
	if (type == 0x0800) {
		if (rest < 20) return 0;
		ulong head = (ulong)(ip[0] & 15) * 4, total = ps_be16(ip + 2);
		if (ip[0] >> 4 != 4 || head < 20 || total < head || total > rest) return 0;
		h->version = 4;
		h->proto = ip[9];
		h->l4 = h->l3 + head;
		h->end = h->l3 + total;
		h->fragment = (ps_be16(ip + 6) & 0x3fff) != 0;
	} else if (type == 0x86dd) {
		if (rest < 40) return 0;
		ulong len = ps_be16(ip + 4);
		if (ip[0] >> 4 != 6 || len > rest - 40) return 0;
		h->version = 6;
		h->proto = ip[6];
		h->l4 = h->l3 + 40;
		h->end = h->l4 + len;
	}
	return 1;
}
