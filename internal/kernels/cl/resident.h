// What a kernel that stays shares with the CPU: the control block. It is what driver.Control is in Go, which describes the protocol.
//
//	KERNEL(name)(__global ps_control *control, ...) {
//		PS_RESIDENT(r, control);          // first in the kernel: it declares local memory
//		uint did = 0;
//		while (ps_pass(&r, did)) did = ...; // all items of the group come here; did is the number of items of work that the pass before did, as item 0 has it
//		ps_leave(&r);
//	}
//
// Words are 32 bits, so that every device with CapSharedAtomics has atomics for them. Counters wrap.

// The states of a group.
#define PS_NEW 0u     // it has not begun
#define PS_RUNNING 1u // it makes passes
#define PS_STOPPED 2u // it has left because the CPU asked for it
#define PS_SPENT 3u   // it has left because its passes were used up
#define PS_IDLE 4u    // it has left because it found nothing to do

#define PS_CHECKPOINT 16 // words of a group's checkpoint
#define PS_QUIET 32u     // a group with that many empty passes in a row looks at stop, and shows its heartbeat, in one of so many

typedef struct {
	uint stop;     // other than 0: leave. A group sees it one pass late, a quiet one PS_QUIET
	uint doorbell; // counts what the CPU has announced
	uint budget;   // passes of a launch at most
	uint idle;     // passes in a row without work, after which a group leaves; 0: it stays
	uint epoch;    // number of the launch
	uint groups;   // lines behind this one
	uint reserved[26];
} ps_control;

typedef struct {
	uint state;     // of the launch epoch
	uint epoch;     // of the launch that wrote this last
	uint heartbeat; // passes begun, of all launches; a quiet group shows it late
	uint done;      // items of work done, of all launches
	uint doorbell;  // as it was before the last pass
	uint reserved[11];
	uint checkpoint[PS_CHECKPOINT]; // what the kernel keeps from one launch to the next; only the group writes it
} ps_group;

// A size that is wrong does not compile.
typedef char ps_control_is_128_bytes[sizeof(ps_control) == 128 ? 1 : -1];
typedef char ps_group_is_128_bytes[sizeof(ps_group) == 128 ? 1 : -1];

// A heartbeat and a wish to stop order nothing, and must not cost a way over the bus for each pass: loads and stores of the system's scope that are relaxed.
#ifdef __NVPTX__
#define ps_load_relaxed_system(p) __scoped_atomic_load_n((p), __ATOMIC_RELAXED, __MEMORY_SCOPE_SYSTEM)
#define ps_store_relaxed_system(p, v) __scoped_atomic_store_n((p), (v), __ATOMIC_RELAXED, __MEMORY_SCOPE_SYSTEM)
#else
#define ps_load_relaxed_system(p) (*(volatile __global uint *)(p))
#define ps_store_relaxed_system(p, v) (*(volatile __global uint *)(p) = (v))
#endif

typedef struct {
	__global ps_control *control;
	__global ps_group *line;
	__local uint *verdict; // two words, used in turns, so that one barrier for each pass is enough
	uint turn, state;
	uint stop; // as it was loaded in the pass before, so that no pass waits for it
	uint budget, idle, empty, heartbeat, done, doorbell; // of item 0
} ps_resident;

#define PS_RESIDENT(name, control) \
	__local uint name##_verdict[2]; \
	ps_resident name = ps_enter((control), name##_verdict)

// ps_enter begins a launch of the group.
PS_FN ps_resident ps_enter(__global ps_control *c, __local uint *verdict) {
	ps_resident r;
	r.control = c;
	r.line = (__global ps_group *)(c + 1) + ps_group_id();
	r.verdict = verdict;
	r.turn = 0;
	r.state = PS_NEW;
	r.stop = 0;
	r.budget = c->budget;
	r.idle = c->idle;
	r.empty = ~0u; // no pass was made yet
	r.heartbeat = r.line->heartbeat;
	r.done = r.line->done;
	r.doorbell = ps_load_acquire_system(&c->doorbell) - 1; // not seen before a pass
	if (ps_local_id() == 0) {
		r.line->epoch = c->epoch;
		ps_store_relaxed_system(&r.line->state, PS_RUNNING);
	}
	return r;
}

// ps_pass begins the next pass of the group, or says by 0 that it must leave.
PS_FN int ps_pass(ps_resident *r, uint did) {
	uint turn = r->turn++ & 1;
	if (ps_local_id() == 0) {
		r->empty = did ? 0 : r->empty + 1;
		r->done += did;
		uint state = PS_RUNNING;
		if (r->stop) state = PS_STOPPED;
		else if (r->budget == 0) state = PS_SPENT;
		else if (r->idle && r->empty >= r->idle) state = PS_IDLE;
		if (state == PS_RUNNING) {
			r->budget--;
			++r->heartbeat;
			// Before the work of the pass: what was published before this ring is seen by it. Groups that do not leave idle need not know.
			if (r->idle) r->doorbell = ps_load_acquire_system(&r->control->doorbell);
			if (r->empty < PS_QUIET || r->empty % PS_QUIET == 0) {
				r->stop = ps_load_relaxed_system(&r->control->stop);
				ps_store_relaxed_system(&r->line->heartbeat, r->heartbeat);
			}
			if (did) ps_store_relaxed_system(&r->line->done, r->done);
		}
		r->verdict[turn] = state;
	}
	ps_barrier();
	r->state = r->verdict[turn];
	return r->state == PS_RUNNING;
}

// ps_leave ends the launch of the group. The kernel has written its checkpoint before, and holds nothing that it has claimed.
PS_FN void ps_leave(ps_resident *r) {
	ps_barrier();
	if (ps_local_id() == 0) {
		ps_store_relaxed_system(&r->line->heartbeat, r->heartbeat);
		ps_store_relaxed_system(&r->line->done, r->done);
		ps_store_relaxed_system(&r->line->doorbell, r->doorbell);
		ps_store_release_system(&r->line->state, r->state);
	}
}
