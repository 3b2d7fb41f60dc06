// hold: stays until the CPU stores something other than 0 in words[0], and says in words[1] that it has begun. One item. It shows what a resident kernel needs: a
// stream that goes on elsewhere, and words that both sides see.
KERNEL(hold)(__global uint *words) {
	ps_store_release_system(words + 1, 1u);
	while (ps_load_acquire_system(words) == 0) {
	}
}
