// reorder: places payloads of packets into batches, converted on the way; clears the places of packets that are missing; reads the numbers of packets that the CPU
// does not see. kernels.go has the layout of the table. One group for each move, all groups for each batch that is cleared, one item for each packet that is read.
// An entry that is not inside its memories is left out, and 1 is stored in the word at refused_at of the table.
#pragma OPENCL FP_CONTRACT OFF
#ifdef __NVPTX__
#define ps_put_half(p, f) __builtin_store_halff((f), (half *)(p))
#define ps_rint(x) __builtin_rint(x)
#else
#define ps_put_half(p, f) vstore_half_rte((f), 0, (half *)(p))
#define ps_rint(x) rint(x)
#endif

typedef struct {
	ulong off;
	uint len, src;
} ps_part;
typedef struct {
	ulong dst;
	uint part, parts, len, place;
} ps_move;
typedef struct {
	ulong dst, mask;
	uint place, unused;
} ps_gap;
typedef struct {
	ulong out;
	uint part, parts, len, unused;
} ps_look;
typedef struct {
	uint per, channels, bits, is_unsigned, big, to, mode, seq_off, seq_width, batch_off, batch_width;
	float exact;
	double scale, offset;
} ps_plan;

enum { PS_I8 = 1, PS_U8, PS_I16, PS_U16, PS_I32, PS_U32, PS_F16, PS_BF16, PS_F32, PS_F64 };
enum { PS_BYTES, PS_EXACT, PS_DOUBLE };

typedef struct {
	__global const uchar *p[4];
	ulong len[4];
} ps_sources;

// ps_parts_inside reports whether the parts are inside their sources, and have n bytes.
PS_FN int ps_parts_inside(__global const ps_part *t, uint parts, ulong n, const ps_sources *s) {
	ulong all = 0;
	for (uint k = 0; k < parts; k++) {
		if (t[k].src > 3 || !ps_inside(t[k].off, t[k].len, s->len[t[k].src])) return 0;
		all += t[k].len;
	}
	return all >= n;
}

// ps_at is byte i of the parts.
PS_FN uint ps_at(__global const ps_part *t, ulong i, const ps_sources *s) {
	while (i >= t->len) i -= (t++)->len;
	return s->p[t->src][t->off + i];
}

PS_FN uint ps_field(__global const ps_part *t, uint off, uint width, const ps_sources *s) {
	ulong v = 0, end = ((ulong)off + width + 7) / 8;
	for (ulong k = off / 8; k < end; k++) v = v << 8 | ps_at(t, k, s);
	return (uint)(v >> (end * 8 - off - width) & (((ulong)1 << width) - 1));
}

PS_FN void ps_clear(__global uchar *dst, ulong n, ulong i, ulong step) {
	ulong done = 0;
	if (((ulong)dst & 7) == 0) {
		for (ulong k = i; k < n / 8; k += step) ((__global ulong *)dst)[k] = 0;
		done = n & ~(ulong)7;
	}
	for (ulong k = done + i; k < n; k += step) dst[k] = 0;
}

// ps_half is the nearest number of a format of 16 bits with that many bits of fraction (10: binary16, 7: bfloat16) to x, ties to even.
PS_FN ushort ps_half(double x, uint exp, uint frac) {
	ulong b = as_ulong(x);
	ushort sign = (ushort)(b >> 48 & 0x8000), inf = (ushort)(((1u << exp) - 1) << frac);
	b &= ~((ulong)1 << 63);
	int e = (int)(b >> 52) - 1023 + (1 << (exp - 1)) - 1;
	uint drop = 52 - frac;
	ulong m = b & (((ulong)1 << 52) - 1);
	if (e >= (1 << exp) - 1) return sign | inf;
	if (e <= 0) {
		if (b >> 52 == 0 || 1 - e > (int)frac + 1) return sign;
		m |= (ulong)1 << 52;
		drop += (uint)(1 - e);
		e = 0;
	}
	ulong v = ((ulong)e << frac) + (m >> drop), rest = m & (((ulong)1 << drop) - 1), half_way = (ulong)1 << (drop - 1);
	if (rest > half_way || (rest == half_way && (v & 1))) v++;
	return sign | (ushort)v;
}

PS_FN long ps_whole(double x, double low, double high) {
	x = ps_rint(x);
	return (long)(x < low ? low : x > high ? high : x);
}

PS_FN ushort ps_float16(float f) {
	ushort h;
	ps_put_half(&h, f);
	return h;
}

PS_FN ushort ps_bfloat16(float f) {
	uint b = as_uint(f);
	return (ushort)((b + 0x7fff + (b >> 16 & 1)) >> 16);
}

// ps_element is the element of a sample, as bits.
PS_FN ulong ps_element(long v, const ps_plan *p) {
	long low = 0, high = 0;
	switch (p->to) {
	case PS_I8: low = -128, high = 127; break;
	case PS_U8: high = 255; break;
	case PS_I16: low = -32768, high = 32767; break;
	case PS_U16: high = 65535; break;
	case PS_I32: low = -2147483648L, high = 2147483647L; break;
	case PS_U32: high = 4294967295L; break;
	}
	if (high) return (ulong)(p->mode == PS_EXACT ? (v < low ? low : v > high ? high : v) : ps_whole((double)v * p->scale + p->offset, (double)low, (double)high));
	if (p->mode == PS_EXACT) { // no more than 24 bits, and a power of two: float has it
		float f = (float)v * p->exact;
		return p->to == PS_F16 ? ps_float16(f) : p->to == PS_BF16 ? ps_bfloat16(f) : p->to == PS_F32 ? as_uint(f) : as_ulong((double)f);
	}
	double x = (double)v * p->scale + p->offset;
	return p->to == PS_F16 ? ps_half(x, 5, 10) : p->to == PS_BF16 ? ps_half(x, 8, 7) : p->to == PS_F32 ? as_uint((float)x) : as_ulong(x);
}

PS_FN void ps_put(__global uchar *d, ulong e, uint size) {
	if (size == 1) *d = (uchar)e;
	else if (size == 2) *(__global ushort *)d = (ushort)e;
	else if (size == 4) *(__global uint *)d = (uint)e;
	else *(__global ulong *)d = e;
}

PS_FN uint ps_pair(uint w, uint sign, const ps_plan *p) {
	float low = (float)((int)((w & 0xffff) ^ sign) - (int)sign) * p->exact, high = (float)((int)((w >> 16) ^ sign) - (int)sign) * p->exact;
	return p->to == PS_F16 ? ps_float16(low) | (uint)ps_float16(high) << 16 : ps_bfloat16(low) | (uint)ps_bfloat16(high) << 16;
}

// ps_eights converts samples of 16 bits to elements of 16 bits, eight at a time, and returns how many it has converted: 0 unless both sides are aligned to 16 bytes.
PS_FN ulong ps_eights(__global uchar *d, __global const uchar *from, ulong samples, ulong i, ulong step, uint sign, const ps_plan *p) {
	if ((((ulong)d | (ulong)from) & 15) || p->bits != 16 || p->mode != PS_EXACT || (p->to != PS_F16 && p->to != PS_BF16)) return 0;
	for (ulong k = i; k < samples / 8; k += step) {
		uint4 v = ((__global const uint4 *)from)[k];
		if (p->big) v = (v >> 8 & 0x00ff00ff) | (v & 0x00ff00ff) << 8;
		uint4 e = {ps_pair(v[0], sign, p), ps_pair(v[1], sign, p), ps_pair(v[2], sign, p), ps_pair(v[3], sign, p)};
		((__global uint4 *)d)[k] = e;
	}
	return samples / 8 * 8;
}

PS_FN uint ps_size(uint to) { return to <= PS_U8 ? 1 : to <= PS_U16 || to == PS_F16 || to == PS_BF16 ? 2 : to == PS_F64 ? 8 : 4; }

KERNEL(reorder)(__global uchar *dst, ulong dst_len, __global const uchar *src0, ulong len0, __global const uchar *src1, ulong len1, __global const uchar *src2, ulong len2,
	__global const uchar *src3, ulong len3, __global uchar *table, __global const ps_plan *plan, ulong moves_at, uint moves, ulong gaps_at, uint gaps, ulong looks_at, uint looks,
	ulong refused_at) {
	ps_sources s = {{src0, src1, src2, src3}, {len0, len1, len2, len3}};
	__global const ps_part *parts = (__global const ps_part *)table;
	ps_plan its = *plan; // once: no store below is to be thought to change it
	const ps_plan *p = &its;
	uint channels = p->channels ? p->channels : 1, unit = p->bits == 12 ? 3 : p->bits == 14 ? 7 : p->bits <= 8 ? 1 : p->bits / 8;
	uint samples = p->mode == PS_BYTES ? 1 : unit * 8 / p->bits, size = ps_size(p->to), lid = ps_local_id(), step = ps_local_size();
	ulong ones = ((ulong)1 << p->bits) - 1, sign = p->is_unsigned ? 0 : (ulong)1 << (p->bits - 1);
	for (ulong i = ps_group_id(); i < moves; i += ps_groups()) {
		ps_move m = ((__global const ps_move *)(table + moves_at))[i];
		__global const ps_part *t = parts + m.part;
		ulong out = m.place / channels, row = out * p->per, units = m.len / unit, each = units / channels, made = m.len;
		if (p->mode != PS_BYTES) made = units * samples * size;
		if (made > m.place || !ps_parts_inside(t, m.parts, m.len, &s) || !ps_inside((channels - 1) * row, out, dst_len) || !ps_inside(m.dst, (channels - 1) * row + out, dst_len)) {
			if (lid == 0) *(__global uint *)(table + refused_at) = 1;
			continue;
		}
		__global uchar *d = dst + m.dst;
		if (p->mode == PS_BYTES && channels == 1) {
			for (ulong at = 0; at < m.len; at += (t++)->len) ps_copy(d + at, s.p[t->src] + t->off, t->len < m.len - at ? t->len : m.len - at, lid, step);
		} else if (p->mode == PS_BYTES && m.parts == 1) {
			for (ulong c = 0; c < channels; c++) ps_copy(d + c * row, s.p[t->src] + t->off + c * out, out, lid, step);
		} else if (p->mode == PS_BYTES) {
			for (ulong k = lid; k < m.len; k += step) d[k / out * row + k % out] = (uchar)ps_at(t, k, &s);
		} else {
			__global const uchar *from = s.p[t->src] + t->off;
			ulong done = m.parts == 1 && channels == 1 ? ps_eights(d, from, units, lid, step, (uint)sign, p) : 0;
			for (ulong u = done + lid; u < units; u += step) {
				ulong v = 0;
				if (m.parts == 1 && unit == 2 && ((ulong)from & 1) == 0) {
					v = ((__global const ushort *)from)[u];
					if (p->big) v = (v >> 8 | v << 8) & 0xffff;
				} else {
					for (uint k = 0; k < unit; k++) {
						ulong b = m.parts == 1 ? from[u * unit + k] : ps_at(t, u * unit + k, &s);
						v = p->big ? v << 8 | b : v | b << (8 * k);
					}
				}
				__global uchar *e = d + u * samples * size;
				if (channels > 1) e = d + u / each * row + u % each * samples * size;
				for (uint k = 0; k < samples; k++) {
					ulong x = v >> (p->big ? samples - 1 - k : k) * p->bits & ones;
					ps_put(e + k * size, ps_element((long)(x ^ sign) - (long)sign, p), size);
				}
			}
		}
		if (channels == 1) ps_clear(d + made, m.place - made, lid, step);
	}
	for (uint i = 0; i < gaps; i++) {
		ps_gap g = ((__global const ps_gap *)(table + gaps_at))[i];
		ulong out = g.place / channels;
		if (!ps_inside(g.dst, (ulong)g.place * p->per, dst_len)) {
			if (ps_global_id() == 0) *(__global uint *)(table + refused_at) = 1;
			continue;
		}
		for (ulong at = ps_group_id(); at < p->per; at += ps_groups()) {
			if (table[g.mask + at / 8] >> (at % 8) & 1) continue;
			for (ulong c = 0; c < channels; c++) ps_clear(dst + g.dst + (c * p->per + at) * out, out, lid, step);
		}
	}
	for (ulong i = ps_global_id(); i < looks; i += ps_global_size()) {
		ps_look r = ((__global const ps_look *)(table + looks_at))[i];
		if (!ps_parts_inside(parts + r.part, r.parts, r.len, &s)) {
			*(__global uint *)(table + refused_at) = 1;
			continue;
		}
		__global uint *w = (__global uint *)(table + r.out);
		w[0] = ps_field(parts + r.part, p->seq_off, p->seq_width, &s);
		w[1] = p->batch_width ? ps_field(parts + r.part, p->batch_off, p->batch_width, &s) : 0;
	}
}
