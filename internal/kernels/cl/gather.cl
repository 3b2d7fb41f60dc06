// gather: piece i of src becomes row i of dst, at i*stride. The rest of a row is left as it was. A piece that is not inside src, longer than a row, or whose row
// is not inside dst is left out and counted in *refused. One group for each piece.
KERNEL(gather)(__global uchar *dst, ulong dst_len, ulong stride, __global const uchar *src, ulong src_len, __global const ps_piece *pieces, uint count,
	__global uint *refused) {
	for (ulong i = ps_group_id(); i < count; i += ps_groups()) {
		ps_piece p = pieces[i];
		if (!ps_inside(p.off, p.len, src_len) || p.len > stride || !ps_row_inside(i, stride, p.len, dst_len)) {
			if (ps_local_id() == 0) ps_add_device(refused, 1u);
			continue;
		}
		ps_copy(dst + i * stride, src + p.off, p.len, ps_local_id(), ps_local_size());
	}
}
