// copy: n bytes from src+src_off to dst+dst_off, which do not overlap.
KERNEL(copy)(__global uchar *dst, ulong dst_off, __global const uchar *src, ulong src_off, ulong n) {
	ps_copy(dst + dst_off, src + src_off, n, ps_global_id(), ps_global_size());
}
