// What kernels share: one source for OpenCL C (1.2 and later) and, through clang, for PTX. Kernels use these names and none of the two worlds' own.
//
// A kernel is written KERNEL(name)(...). Sizes and offsets are ulong, so that memory beyond 4 GiB is addressed right. Grids have one dimension.

#ifdef __NVPTX__

#define KERNEL(name) __attribute__((nvptx_kernel)) void name
#define ps_local_id() ((uint)__nvvm_read_ptx_sreg_tid_x())
#define ps_local_size() ((uint)__nvvm_read_ptx_sreg_ntid_x())
#define ps_group_id() ((uint)__nvvm_read_ptx_sreg_ctaid_x())
#define ps_groups() ((uint)__nvvm_read_ptx_sreg_nctaid_x())

// All items of the group come here before any goes on, and see what the others wrote before.
#define ps_barrier() __nvvm_bar_sync(0)

// Atomics on 32 bits. Scopes: group, device, system (the CPU and other devices).
#define ps_add_group(p, v) __scoped_atomic_fetch_add((p), (v), __ATOMIC_RELAXED, __MEMORY_SCOPE_WRKGRP)
#define ps_add_device(p, v) __scoped_atomic_fetch_add((p), (v), __ATOMIC_RELAXED, __MEMORY_SCOPE_DEVICE)
#define ps_load_acquire_device(p) __scoped_atomic_load_n((p), __ATOMIC_ACQUIRE, __MEMORY_SCOPE_DEVICE)
#define ps_store_release_device(p, v) __scoped_atomic_store_n((p), (v), __ATOMIC_RELEASE, __MEMORY_SCOPE_DEVICE)
#define ps_load_acquire_system(p) __scoped_atomic_load_n((p), __ATOMIC_ACQUIRE, __MEMORY_SCOPE_SYSTEM)
#define ps_store_release_system(p, v) __scoped_atomic_store_n((p), (v), __ATOMIC_RELEASE, __MEMORY_SCOPE_SYSTEM)

#else

#define KERNEL(name) __kernel void name
#define ps_local_id() ((uint)get_local_id(0))
#define ps_local_size() ((uint)get_local_size(0))
#define ps_group_id() ((uint)get_group_id(0))
#define ps_groups() ((uint)get_num_groups(0))
#define ps_barrier() barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE)

// These have been there since OpenCL 1.1, in all address spaces; they are relaxed, and of the device's scope at least.
#define ps_add_group(p, v) atomic_add((p), (v))
#define ps_add_device(p, v) atomic_add((p), (v))

#if __OPENCL_C_VERSION__ >= 300
#ifdef __opencl_c_atomic_scope_all_devices
#define PS_SYSTEM memory_scope_all_svm_devices
#else
// Without that scope the host shares the caches of the device (a CPU), or CapSharedAtomics is missing and nobody asks for it.
#define PS_SYSTEM memory_scope_device
#endif
#define PS_ATOMIC(p) ((volatile __global atomic_uint *)(p))
#define ps_load_acquire_device(p) atomic_load_explicit(PS_ATOMIC(p), memory_order_acquire, memory_scope_device)
#define ps_store_release_device(p, v) atomic_store_explicit(PS_ATOMIC(p), (v), memory_order_release, memory_scope_device)
#define ps_load_acquire_system(p) atomic_load_explicit(PS_ATOMIC(p), memory_order_acquire, PS_SYSTEM)
#define ps_store_release_system(p, v) atomic_store_explicit(PS_ATOMIC(p), (v), memory_order_release, PS_SYSTEM)
#else
inline uint ps_load_acquire_device(volatile __global uint *p) {
	uint v = *p;
	mem_fence(CLK_GLOBAL_MEM_FENCE);
	return v;
}
inline void ps_store_release_device(volatile __global uint *p, uint v) {
	mem_fence(CLK_GLOBAL_MEM_FENCE);
	*p = v;
}
#define ps_load_acquire_system(p) ps_load_acquire_device(p)
#define ps_store_release_system(p, v) ps_store_release_device(p, v)
#endif

#endif

#define ps_global_id() ((ulong)ps_group_id() * ps_local_size() + ps_local_id())
#define ps_global_size() ((ulong)ps_groups() * ps_local_size())

#define PS_FN static inline __attribute__((always_inline, unused))

// ps_inside reports whether n bytes from off lie within len bytes, without overflow.
PS_FN int ps_inside(ulong off, ulong n, ulong len) { return off <= len && n <= len - off; }

// ps_row_inside reports whether n bytes from row i lie within len bytes, where rows are stride bytes apart.
PS_FN int ps_row_inside(ulong i, ulong stride, ulong n, ulong len) {
	return (stride == 0 || i <= len / stride) && ps_inside(i * stride, n, len);
}

// Numbers in memory of any alignment: big-endian, as networks have them, and little-endian, as hosts do.
PS_FN uint ps_be16(__global const uchar *p) { return (uint)p[0] << 8 | p[1]; }
PS_FN uint ps_be32(__global const uchar *p) { return ps_be16(p) << 16 | ps_be16(p + 2); }
PS_FN ulong ps_be64(__global const uchar *p) { return (ulong)ps_be32(p) << 32 | ps_be32(p + 4); }
PS_FN uint ps_le16(__global const uchar *p) { return (uint)p[1] << 8 | p[0]; }
PS_FN uint ps_le32(__global const uchar *p) { return ps_le16(p + 2) << 16 | ps_le16(p); }
PS_FN ulong ps_le64(__global const uchar *p) { return (ulong)ps_le32(p + 4) << 32 | ps_le32(p); }

// ps_copy moves n bytes by the items i, i+step, ...: 16 at a time where both sides are aligned so.
PS_FN void ps_copy(__global uchar *dst, __global const uchar *src, ulong n, ulong i, ulong step) {
	ulong done = 0;
	if ((((ulong)dst | (ulong)src) & 15) == 0) {
		__global uint4 *d = (__global uint4 *)dst;
		__global const uint4 *s = (__global const uint4 *)src;
		ulong words = n / 16;
		for (ulong k = i; k < words; k += step) d[k] = s[k];
		done = words * 16;
	} else if ((((ulong)dst | (ulong)src) & 3) == 0) {
		__global uint *d = (__global uint *)dst;
		__global const uint *s = (__global const uint *)src;
		ulong words = n / 4;
		for (ulong k = i; k < words; k += step) d[k] = s[k];
		done = words * 4;
	}
	for (ulong k = done + i; k < n; k += step) dst[k] = src[k];
}

// ps_sum is the one's complement sum (RFC 1071) of words of 16 bits, big-endian, folded to 16 bits: of the words i, i+step, ... of n bytes. A last odd byte is the
// upper half of a word. It is 0 only where all bytes are.
PS_FN uint ps_fold(ulong s) {
	while (s >> 16) s = (s & 0xffff) + (s >> 16);
	return (uint)s;
}
PS_FN uint ps_sum(__global const uchar *p, ulong n, ulong i, ulong step) {
	ulong s = 0;
	for (ulong k = i; k < n / 2; k += step) s += ps_be16(p + 2 * k);
	if ((n & 1) && n / 2 % step == i) s += (uint)p[n - 1] << 8;
	return ps_fold(s);
}

// ps_udp_payload is a view of the headers of a frame: where the payload of UDP is. 0 where it is not UDP in IPv4 or IPv6 (without extension headers, not a fragment) behind
// Ethernet with up to two VLAN tags, or is cut off; otherwise its offset, and *len its length.
PS_FN ulong ps_udp_payload(__global const uchar *p, ulong n, ulong *len) {
	ulong at = 12;
	if (n < 14) return 0;
	uint type = ps_be16(p + at);
	for (int tags = 0; tags < 2 && (type == 0x8100 || type == 0x88a8); tags++) {
		at += 4;
		if (!ps_inside(at, 2, n)) return 0;
		type = ps_be16(p + at);
	}
	at += 2;
	ulong rest;
	if (type == 0x0800) {
		if (!ps_inside(at, 20, n)) return 0;
		ulong head = (ulong)(p[at] & 15) * 4, total = ps_be16(p + at + 2);
		if (p[at] >> 4 != 4 || head < 20 || total < head || !ps_inside(at, total, n) || p[at + 9] != 17 || (ps_be16(p + at + 6) & 0x3fff)) return 0;
		at += head;
		rest = total - head;
	} else if (type == 0x86dd) {
		if (!ps_inside(at, 40, n)) return 0;
		rest = ps_be16(p + at + 4);
		if (p[at] >> 4 != 6 || p[at + 6] != 17 || !ps_inside(at + 40, rest, n)) return 0;
		at += 40;
	} else {
		return 0;
	}
	if (rest < 8) return 0;
	ulong udp = ps_be16(p + at + 4);
	if (udp < 8 || udp > rest) return 0;
	*len = udp - 8;
	return at + 8;
}

// Pieces of memory, as tables of them have them: {ulong offset, ulong length}.
typedef struct {
	ulong off, len;
} ps_piece;
