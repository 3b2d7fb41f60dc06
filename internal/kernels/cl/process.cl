// process: a batch of packets, one result for each: the process_packet of the ring, without the ring. A slot is stride bytes:
//
//	ulong timestamp; uint length; uint flags; uchar data[stride-16]
//
// and a result 24 bytes: uint index, uint code, uint words[4]. The words are the first 16 bytes of the packet as they are (four floats, little-endian), each 0 where the
// packet ends before it. With flag 1 data is a frame and the words are the first of its UDP payload. Codes: 0 good, 1 shorter than one word, 2 longer
// than its slot (and no slot is shorter than 16 bytes), 3 a frame that is not UDP.
KERNEL(process)(__global uint *results, __global const uchar *slots, ulong stride, uint count) {
	for (ulong i = ps_global_id(); i < count; i += ps_global_size()) {
		__global const uchar *slot = slots + i * stride;
		__global uint *r = results + i * 6;
		ulong n = stride < 16 ? 0 : ps_le32(slot + 8), at = 0;
		uint code = 0;
		if (stride < 16 || n > stride - 16) {
			code = 2;
		} else if (ps_le32(slot + 12) & 1) {
			at = ps_udp_payload(slot + 16, n, &n);
			if (at == 0) code = 3;
		}
		if (code == 0 && n < 4) code = 1;
		r[0] = (uint)i;
		r[1] = code;
		for (uint w = 0; w < 4; w++) r[2 + w] = code == 0 && n >= 4 * w + 4 ? ps_le32(slot + 16 + at + 4 * w) : 0;
	}
}
