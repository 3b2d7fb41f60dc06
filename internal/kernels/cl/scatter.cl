// scatter: row i of src, at i*stride, becomes piece i of dst; what gather does, back. Pieces do not overlap. A piece that is not inside dst, longer than a row, or
// whose row is not inside src is left out and counted in *refused. One group for each piece.
KERNEL(scatter)(__global uchar *dst, ulong dst_len, __global const ps_piece *pieces, uint count, __global const uchar *src, ulong src_len, ulong stride,
	__global uint *refused) {
	for (ulong i = ps_group_id(); i < count; i += ps_groups()) {
		ps_piece p = pieces[i];
		if (!ps_inside(p.off, p.len, dst_len) || p.len > stride || !ps_row_inside(i, stride, p.len, src_len)) {
			if (ps_local_id() == 0) ps_add_device(refused, 1u);
			continue;
		}
		ps_copy(dst + p.off, src + i * stride, p.len, ps_local_id(), ps_local_size());
	}
}
