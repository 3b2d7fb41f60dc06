// Rings of descriptors (package ring, Descriptors) as kernels use them. It comes behind penstock.h and the layout that package ring writes: ps_ring, ps_slot. One work-item of a
// group, its leader, calls what is here; the group's other items see what the leader claimed behind a barrier.
//
// Only one side changes a ticket by read-modify-write: kernels the head of rings that the CPU fills, and the tail of rings that it empties.

// Words of 64 bits that the CPU and kernels share. A load that acquires sees what was stored before the store that released.
#ifdef __NVPTX__

#define ps_load64_acquire(p) __scoped_atomic_load_n((p), __ATOMIC_ACQUIRE, __MEMORY_SCOPE_SYSTEM)
#define ps_store64_release(p, v) __scoped_atomic_store_n((p), (v), __ATOMIC_RELEASE, __MEMORY_SCOPE_SYSTEM)
#define ps_add64(p, v) __scoped_atomic_fetch_add((p), (v), __ATOMIC_ACQ_REL, __MEMORY_SCOPE_SYSTEM)
#define ps_fence_system() __nvvm_membar_sys()
PS_FN int ps_cas64(__global ulong *p, ulong old, ulong now) {
	return __scoped_atomic_compare_exchange_n(p, &old, now, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED, __MEMORY_SCOPE_SYSTEM);
}

#else

#pragma OPENCL EXTENSION cl_khr_int64_base_atomics : enable
#if __OPENCL_C_VERSION__ >= 300
#pragma OPENCL EXTENSION cl_khr_int64_extended_atomics : enable
#define PS_ATOMIC64(p) ((volatile __global atomic_ulong *)(p))
#define ps_load64_acquire(p) atomic_load_explicit(PS_ATOMIC64(p), memory_order_acquire, PS_SYSTEM)
#define ps_store64_release(p, v) atomic_store_explicit(PS_ATOMIC64(p), (v), memory_order_release, PS_SYSTEM)
#define ps_add64(p, v) atomic_fetch_add_explicit(PS_ATOMIC64(p), (v), memory_order_acq_rel, PS_SYSTEM)
#define ps_fence_system() atomic_work_item_fence(CLK_GLOBAL_MEM_FENCE, memory_order_seq_cst, PS_SYSTEM)
PS_FN int ps_cas64(__global ulong *p, ulong old, ulong now) {
	return atomic_compare_exchange_strong_explicit(PS_ATOMIC64(p), &old, now, memory_order_acq_rel, memory_order_relaxed, PS_SYSTEM);
}
#else
#define ps_fence_system() mem_fence(CLK_GLOBAL_MEM_FENCE)
PS_FN ulong ps_load64_acquire(volatile __global ulong *p) {
	ulong v = *p;
	ps_fence_system();
	return v;
}
PS_FN void ps_store64_release(volatile __global ulong *p, ulong v) {
	ps_fence_system();
	*p = v;
}
#define ps_add64(p, v) atom_add((p), (v))
#define ps_cas64(p, old, now) (atom_cmpxchg((p), (old), (now)) == (old))
#endif

#endif

PS_FN __global ps_slot *ps_slot_of(__global ps_ring *r, ulong slots, ulong t) { return (__global ps_slot *)(r + 1) + (t & (slots - 1)); }

// ps_run takes up to want tickets from *next on whose slots have the sequence ticket+ready. It returns how many, 0 where there is none, and the first in *t.
PS_FN uint ps_run(__global ps_ring *r, ulong slots, __global ulong *next, __global ulong *retries, ulong ready, uint want, ulong *t) {
	for (;;) {
		ulong first = ps_load64_acquire(next);
		uint n = 0;
		while (n < want && ps_load64_acquire(&ps_slot_of(r, slots, first + n)->seq) == first + n + ready) n++;
		*t = first;
		if (n == 0) {
			if ((long)(ps_load64_acquire(&ps_slot_of(r, slots, first)->seq) - (first + ready)) < 0 || ps_load64_acquire(next) == first) return 0;
			continue;
		}
		if (ps_cas64(next, first, first + n)) return n;
		ps_add64(retries, 1ul);
	}
}

// ps_claim takes published descriptors; each of the tickets *t to *t+n-1 is released once.
PS_FN uint ps_claim(__global ps_ring *r, ulong slots, uint want, ulong *t) {
	uint n = ps_run(r, slots, &r->head, &r->getretries, 1, want, t);
	if (n == 0) ps_add64(&r->empty, 1ul);
	return n;
}

// ps_reserve takes free slots for results; each of the tickets is filled and published once.
PS_FN uint ps_reserve(__global ps_ring *r, ulong slots, uint want, ulong *t) { return ps_run(r, slots, &r->tail, &r->putretries, 0, want, t); }

// ps_publish makes the slot of a reserved ticket, and what was written before, visible to the consumer.
PS_FN void ps_publish(__global ps_ring *r, ulong slots, ulong t) { ps_store64_release(&ps_slot_of(r, slots, t)->seq, t + 1); }

// ps_release gives n claimed tickets back to producers.
PS_FN void ps_release(__global ps_ring *r, ulong slots, ulong t, uint n) {
	for (uint i = 0; i < n; i++) ps_store64_release(&ps_slot_of(r, slots, t + i)->seq, t + i + slots);
	ps_add64(&r->released, (ulong)n);
}
