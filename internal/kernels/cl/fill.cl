// fill: n bytes from dst+off; byte i of them is byte i%8 of pattern, the lowest first.
KERNEL(fill)(__global uchar *dst, ulong off, ulong n, ulong pattern) {
	dst += off;
	ulong i = ps_global_id(), step = ps_global_size(), done = 0;
	if (((ulong)dst & 7) == 0) {
		__global ulong *d = (__global ulong *)dst;
		for (ulong k = i; k < n / 8; k += step) d[k] = pattern;
		done = n & ~(ulong)7;
	}
	for (ulong k = done + i; k < n; k += step) dst[k] = (uchar)(pattern >> (k % 8 * 8));
}
