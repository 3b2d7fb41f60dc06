#include "resident.h"

// tally: a resident kernel that does the least that one can. Each group counts, one for each pass, up to the number that the CPU has stored in words[0], and shows how far it
// is in words[1 + group]. The count itself is in a register while the kernel runs, and in the checkpoint between launches.
KERNEL(tally)(__global ps_control *control, __global uint *words) {
	PS_RESIDENT(r, control);
	uint count = r.line->checkpoint[0], did = 0;
	while (ps_pass(&r, did)) {
		did = 0;
		if (ps_local_id() == 0 && count != ps_load_acquire_system(words)) {
			did = 1;
			ps_store_release_system(words + 1 + ps_group_id(), ++count);
		}
	}
	if (ps_local_id() == 0) r.line->checkpoint[0] = count;
	ps_leave(&r);
}
