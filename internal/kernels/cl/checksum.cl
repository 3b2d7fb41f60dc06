// checksum: sums[i] is the one's complement sum (RFC 1071) of piece i of src, not inverted: a header with a right checksum gives 0xffff. A piece that is not inside
// src gives 0xffffffff. One group for each piece.
KERNEL(checksum)(__global uint *sums, __global const uchar *src, ulong src_len, __global const ps_piece *pieces, uint count) {
	__local uint sum;
	for (ulong i = ps_group_id(); i < count; i += ps_groups()) {
		ps_piece p = pieces[i];
		int good = ps_inside(p.off, p.len, src_len);
		if (ps_local_id() == 0) sum = 0;
		ps_barrier();
		if (good) ps_add_group(&sum, ps_sum(src + p.off, p.len, ps_local_id(), ps_local_size()));
		ps_barrier();
		if (ps_local_id() == 0) sums[i] = good ? ps_fold(sum) : 0xffffffffu;
		ps_barrier();
	}
}
