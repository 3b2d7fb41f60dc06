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

#define PS_FEED(name, packet) \
	KERNEL(name)(__global ps_control *control, __global uchar *in, __global uchar *out, uint slots, uint rings, __global uchar *payload, ulong payload_len, \
		__global uchar *rows, ulong row_len, __global uchar *weights, ulong weights_len, ulong param) { \
		PS_RESIDENT(r, control); \
		__local ulong run[4]; \
		ulong ring = ps_group_id() % rings, t = 0, o = 0; \
		__global ps_ring *from = (__global ps_ring *)(in + ring * (sizeof(ps_ring) + slots * (ulong)sizeof(ps_slot))); \
		__global ps_ring *to = (__global ps_ring *)(out + ring * (sizeof(ps_ring) + slots * (ulong)sizeof(ps_slot))); \
		uint n = r.line->checkpoint[0], did = 0; \
		t = r.line->checkpoint[1] | (ulong)r.line->checkpoint[2] << 32; \
		while (ps_pass(&r, did)) { \
			if (ps_local_id() == 0) { \
				if (n == 0) n = ps_claim(from, slots, PS_BATCH, &t); \
				run[2] = n ? ps_reserve(to, slots, n, &o) : 0; \
				run[0] = t; \
				run[1] = o; \
			} \
			ps_barrier(); \
			t = run[0]; \
			o = run[1]; \
			did = (uint)run[2]; \
			for (uint i = 0; i < did; i++) { \
				__global ps_slot *s = ps_slot_of(from, slots, t + i), *d = ps_slot_of(to, slots, o + i); \
				ps_packet k = {payload, s->off, s->len, 0, s->flow, s->hash, s->flags, rows + (ring * slots + ((o + i) & (slots - 1))) * row_len, row_len, weights, weights_len, 0, param}; \
				if (!ps_inside(k.off, k.len, payload_len)) { \
					k.off = k.len = 0; \
					k.flags |= PS_DESC_VOID; \
				} \
				ps_packet was = k; \
				ulong again = !(k.flags & PS_DESC_VOID); \
				while (again) { \
					k = was; \
					if (weights_len) { \
						if (ps_local_id() == 0) run[3] = ps_load64_acquire((__global ulong *)weights); \
						ps_barrier(); \
						k.version = run[3]; \
						k.weights = weights + 128 + (k.version & 1) * weights_len; \
					} \
					packet(&k); \
					ps_barrier(); \
					again = 0; \
					if (weights_len) { \
						if (ps_local_id() == 0) { \
							ps_fence_system(); \
							run[3] = ps_load64_acquire((__global ulong *)weights + 1) - k.version > 1; \
						} \
						ps_barrier(); \
						again = run[3]; \
						ps_barrier(); \
					} \
				} \
				if (ps_local_id() == 0) { \
					d->off = k.off; \
					d->len = k.len; \
					d->time = s->time; \
					d->tag = s->tag; \
					d->value = k.value; \
					d->flow = k.flow; \
					d->hash = k.hash; \
					d->source = s->source; \
					d->flags = k.flags; \
					ps_publish(to, slots, o + i); \
				} \
			} \
			if (ps_local_id() == 0 && did) { \
				ps_release(from, slots, t, did); \
				t += did; \
				n -= did; \
			} \
		} \
		if (ps_local_id() == 0) { \
			if (n == 0) t = 0; \
			r.line->checkpoint[0] = n; \
			r.line->checkpoint[1] = (uint)t; \
			r.line->checkpoint[2] = (uint)(t >> 32); \
		} \
		ps_leave(&r); \
	}
