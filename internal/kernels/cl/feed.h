// The loop of kernels that are fed by rings: claim, process, answer. It comes behind resident.h, ring_layout.h and ring.h. A kernel is a function for one packet:
//
//	PS_FN void name(ps_packet *k) { ... }
//	PS_FEED(feed_name, name)
//
// All items of a group call the function for the same packet, and share its work as they like: item i of n is ps_local_id() of ps_local_size(). What the function leaves in k,
// as item 0 has it, becomes the result. With weights it may be called twice for a packet: it writes only the row then.

typedef struct {
	__global uchar *payload; // memory of all packets
	ulong off, len;          // the packet's bytes in it; the result's, afterwards
	ulong value;             // of the result: what was found
	uint flow, hash, flags;
	__global uchar *row;     // of the result, row_len bytes; the receiver of the result has it until it releases the result
	ulong row_len;
	__global const uchar *weights; // weights_len bytes, 16-byte aligned, which do not change while the function runs, or it is called again
	ulong weights_len, version;
	ulong param;             // the kernel's own
} ps_packet;

// PS_DROP in the flags of a result says that the packet ends here.
#define PS_DROP 65536u

#define PS_BATCH 32u // descriptors that a group claims at once
#define PS_RUN 8u    // results that it publishes at once

// What a group holds of its rings from one pass to the next: n descriptors from ticket t on, claimed and not released. Only item 0 changes it.
typedef struct {
	__global ps_ring *from, *to;
	ulong slots, t, o; // t and o: where the group looks for descriptors, and for room
	uint n, wide;      // wide: how many descriptors it looks for
	uint sole;         // no other group serves these rings
	uint lost;         // another group, or the producer, was faster: t and o are looked up
	uint room;         // the slot of ticket o was free
	uint empty;        // passes that found nothing, and are not counted in the ring yet
	// What the items tell each other in a pass.
	uint passed; // the slot of ticket t is not this ticket's any more
	uint did;    // descriptors that are claimed, and have room for their results
	ulong head, tail, again;
	uchar in[PS_BATCH], out[PS_BATCH]; // the slot has a descriptor; is free
	ps_slot d[PS_BATCH];
} ps_feed;

PS_FN void ps_open(__local ps_feed *f, __global ps_ring *from, __global ps_ring *to, ulong slots, uint sole, __global const uint *checkpoint) {
	if (ps_local_id() == 0) {
		f->from = from;
		f->to = to;
		f->slots = slots;
		f->n = checkpoint[0];
		f->t = f->n ? checkpoint[1] | (ulong)checkpoint[2] << 32 : ps_load64_acquire(&from->head);
		f->o = ps_load64_acquire(&to->tail);
		f->wide = PS_BATCH;
		f->sole = sole;
		f->lost = f->room = f->empty = 0;
	}
}

PS_FN uint ps_ones(__local const uchar *is, uint n) {
	uint k = 0;
	while (k < n && is[k]) k++;
	return k;
}

// ps_take claims descriptors, reads them into f->d, and reserves room for their results: it returns for how many, from the tickets f->t and f->o on. All items of the group call
// it, and look at a slot each, since each look is a way over the bus. A descriptor may be read before it is claimed: where the claim succeeds, no other group had it.
PS_FN uint ps_take(__local ps_feed *f) {
	uint item = ps_local_id(), items = ps_local_size(), kept = f->n, want = kept ? kept : f->wide;
	if (item == 0) {
		uint look = !f->sole || f->lost;
		f->head = look && !kept ? ps_load64_relaxed(&f->from->head) : f->t;
		f->tail = look ? ps_load64_relaxed(&f->to->tail) : f->o;
	}
	for (uint i = item; i < want; i += items) {
		long ahead = kept ? 0 : (long)(ps_load64_acquire(&ps_slot_of(f->from, f->slots, f->t + i)->seq) - (f->t + i + 1));
		f->in[i] = ahead == 0;
		if (i == 0) f->passed = ahead > 0;
		if (want > 1 || !f->room) f->out[i] = ps_load64_acquire(&ps_slot_of(f->to, f->slots, f->o + i)->seq) == f->o + i;
	}
	ps_barrier();
	uint n = ps_ones(f->in, want), m = ps_ones(f->out, n), stale = f->passed || f->head != f->t || f->tail != f->o;
	if (stale) n = m = 0;
	uint won = 1; // which is asked for last: the descriptors come meanwhile
	if (item == 0 && n && !kept) won = ps_cas64_relaxed(&f->from->head, f->t, f->t + n);
	for (uint i = item; i < m; i += items) f->d[i] = *(__global const ps_slot *)ps_slot_of(f->from, f->slots, f->t + i);
	if (item == 0) {
		f->lost = stale;
		if (!won) {
			f->lost = 1;
			n = m = 0;
			ps_add64(&f->from->getretries, 1ul);
		} else if (m && f->sole) {
			ps_store64_relaxed(&f->to->tail, f->o + m);
		} else if (m && !ps_cas64_relaxed(&f->to->tail, f->o, f->o + m)) {
			f->lost = 1;
			m = 0;
			ps_add64(&f->to->putretries, 1ul);
		}
		f->did = m;
	}
	ps_barrier();
	m = f->did;
	if (item == 0) {
		f->t = f->head;
		f->o = f->tail;
		if (!kept) f->n = n;
		if (f->n == 0 && !f->lost) f->empty++;
		f->wide = f->n || f->lost ? PS_BATCH : 1;
		f->room = !n && !f->lost && f->out[0];
	}
	return m;
}

// ps_give publishes the results first to end-1 of a batch, which f->d has, and releases their descriptors. All items of the group call it.
PS_FN void ps_give(__local ps_feed *f, uint first, uint end) {
	ps_barrier();
	for (uint i = first + ps_local_id(); i < end; i += ps_local_size()) {
		ps_slot r = f->d[i];
		__global ps_slot *d = ps_slot_of(f->to, f->slots, f->o + i);
		d->off = r.off;
		d->len = r.len;
		d->time = r.time;
		d->tag = r.tag;
		d->value = r.value;
		d->flow = r.flow;
		d->hash = r.hash;
		d->source = r.source;
		d->flags = r.flags;
		ps_fence_system(); // also for what other items wrote before the barrier
		ps_store64_relaxed(&d->seq, f->o + i + 1);
		ps_store64_relaxed(&ps_slot_of(f->from, f->slots, f->t + i)->seq, f->t + i + f->slots);
	}
	ps_barrier();
}

// ps_done counts what a pass did.
PS_FN void ps_done(__local ps_feed *f, uint did) {
	if (ps_local_id() || !did) return;
	f->t += did;
	f->o += did;
	f->n -= did;
	ps_add64(&f->from->released, (ulong)did);
	if (f->empty) ps_add64(&f->from->empty, (ulong)f->empty);
	f->empty = 0;
}

PS_FN void ps_close(__local ps_feed *f, __global uint *checkpoint) {
	if (ps_local_id()) return;
	if (f->empty) ps_add64(&f->from->empty, (ulong)f->empty);
	checkpoint[0] = f->n;
	checkpoint[1] = f->n ? (uint)f->t : 0;
	checkpoint[2] = f->n ? (uint)(f->t >> 32) : 0;
}

#define PS_FEED(name, packet) \
	KERNEL(name)(__global ps_control *control, __global uchar *in, __global uchar *out, uint slots, uint rings, __global uchar *payload, ulong payload_len, \
		__global uchar *rows, ulong row_len, __global uchar *weights, ulong weights_len, ulong param) { \
		PS_RESIDENT(r, control); \
		__local ps_feed f; \
		ulong ring = ps_group_id() % rings, each = sizeof(ps_ring) + slots * (ulong)sizeof(ps_slot); \
		uint did = 0; \
		ps_open(&f, (__global ps_ring *)(in + ring * each), (__global ps_ring *)(out + ring * each), slots, ps_groups() <= rings, r.line->checkpoint); \
		while (ps_pass(&r, did)) { \
			did = ps_take(&f); \
			if (ps_local_id() == 0 && f.lost) r.empty = ~0u; /* there may be more */ \
			for (uint i = 0; i < did; i++) { \
				ps_packet k = {payload, f.d[i].off, f.d[i].len, 0, f.d[i].flow, f.d[i].hash, f.d[i].flags, rows + (ring * slots + ((f.o + i) & (slots - 1))) * row_len, row_len, weights, weights_len, 0, param}; \
				if (!ps_inside(k.off, k.len, payload_len)) { \
					k.off = k.len = 0; \
					k.flags |= PS_DESC_VOID; \
				} \
				ps_packet was = k; \
				ulong again = !(k.flags & PS_DESC_VOID); \
				while (again) { \
					k = was; \
					if (weights_len) { \
						if (ps_local_id() == 0) f.again = ps_load64_acquire((__global ulong *)weights); \
						ps_barrier(); \
						k.version = f.again; \
						k.weights = weights + 128 + (k.version & 1) * weights_len; \
					} \
					packet(&k); \
					ps_barrier(); \
					again = 0; \
					if (weights_len) { \
						if (ps_local_id() == 0) { \
							ps_fence_system(); \
							f.again = ps_load64_acquire((__global ulong *)weights + 1) - k.version > 1; \
						} \
						ps_barrier(); \
						again = f.again; \
						ps_barrier(); \
					} \
				} \
				if (ps_local_id() == 0) { \
					f.d[i].off = k.off; \
					f.d[i].len = k.len; \
					f.d[i].value = k.value; \
					f.d[i].flow = k.flow; \
					f.d[i].hash = k.hash; \
					f.d[i].flags = k.flags; \
				} \
				if (i + 1 == did || (i + 1) % PS_RUN == 0) ps_give(&f, i / PS_RUN * PS_RUN, i + 1); \
			} \
			ps_done(&f, did); \
		} \
		ps_close(&f, r.line->checkpoint); \
		ps_leave(&r); \
	}
