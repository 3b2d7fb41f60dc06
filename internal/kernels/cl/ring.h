// Rings of descriptors (package ring, Descriptors) as kernels use them. It comes behind penstock.h and the layout that package ring writes: ps_ring, ps_slot. feed.h has
// the two sides of a kernel.
//
// Only one side changes a ticket by read-modify-write: kernels the head of rings that the CPU fills, and the tail of rings that it empties.

// Words of 64 bits that the CPU and kernels share. A load that acquires sees what was stored before the store that released.
#ifdef __NVPTX__

#define ps_load64_acquire(p) __scoped_atomic_load_n((p), __ATOMIC_ACQUIRE, __MEMORY_SCOPE_SYSTEM)
#define ps_load64_relaxed(p) __scoped_atomic_load_n((p), __ATOMIC_RELAXED, __MEMORY_SCOPE_SYSTEM)
#define ps_store64_relaxed(p, v) __scoped_atomic_store_n((p), (v), __ATOMIC_RELAXED, __MEMORY_SCOPE_SYSTEM)
#define ps_add64(p, v) __scoped_atomic_fetch_add((p), (v), __ATOMIC_RELAXED, __MEMORY_SCOPE_SYSTEM)
#define ps_fence_system() __nvvm_membar_sys()
PS_FN int ps_cas64_relaxed(__global ulong *p, ulong old, ulong now) {
	return __scoped_atomic_compare_exchange_n(p, &old, now, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED, __MEMORY_SCOPE_SYSTEM);
}

#else

#pragma OPENCL EXTENSION cl_khr_int64_base_atomics : enable
#if __OPENCL_C_VERSION__ >= 300
#pragma OPENCL EXTENSION cl_khr_int64_extended_atomics : enable
#define PS_ATOMIC64(p) ((volatile __global atomic_ulong *)(p))
#define ps_load64_acquire(p) atomic_load_explicit(PS_ATOMIC64(p), memory_order_acquire, PS_SYSTEM)
#define ps_load64_relaxed(p) atomic_load_explicit(PS_ATOMIC64(p), memory_order_relaxed, PS_SYSTEM)
#define ps_store64_relaxed(p, v) atomic_store_explicit(PS_ATOMIC64(p), (v), memory_order_relaxed, PS_SYSTEM)
#define ps_add64(p, v) atomic_fetch_add_explicit(PS_ATOMIC64(p), (v), memory_order_relaxed, PS_SYSTEM)
#define ps_fence_system() atomic_work_item_fence(CLK_GLOBAL_MEM_FENCE, memory_order_seq_cst, PS_SYSTEM)
PS_FN int ps_cas64_relaxed(__global ulong *p, ulong old, ulong now) {
	return atomic_compare_exchange_strong_explicit(PS_ATOMIC64(p), &old, now, memory_order_relaxed, memory_order_relaxed, PS_SYSTEM);
}
#else
#define ps_fence_system() mem_fence(CLK_GLOBAL_MEM_FENCE)
PS_FN ulong ps_load64_acquire(volatile __global ulong *p) {
	ulong v = *p;
	ps_fence_system();
	return v;
}
#define ps_load64_relaxed(p) (*(volatile __global ulong *)(p))
#define ps_store64_relaxed(p, v) (*(volatile __global ulong *)(p) = (v))
#define ps_add64(p, v) atom_add((p), (v))
#define ps_cas64_relaxed(p, old, now) (atom_cmpxchg((p), (old), (now)) == (old))
#endif

#endif

PS_FN __global ps_slot *ps_slot_of(__global ps_ring *r, ulong slots, ulong t) { return (__global ps_slot *)(r + 1) + (t & (slots - 1)); }
