/* What engine/null does for a packet, in C: descriptors of free slots are filled in an array of structs, their lengths are added up, and the slots
 * go back to their list, each once: a second return is refused. Several threads could share the list. It has what is in a burst.Burst, and none of
 * the checks that two threads do not return one slot at the same time. Arguments: packets, packets of a burst, bytes of a packet. It prints
 * nanoseconds of processor time for a packet. */
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { SLOTS = 4096, MOST = 1024 };

struct descriptor {
	uint64_t handle, offset;
	uint32_t length, room;
	uint16_t headroom;
	uint8_t source, role;
	uint32_t flow, connection, wire;
	int64_t time;
	uint16_t flags;
};

static _Atomic uint64_t head = 1; /* index + 1 of the first free slot, and a count of changes above */
static uint32_t next[SLOTS], generation[SLOTS];
static struct descriptor burst[MOST];

static __attribute__((noinline)) int collect(int room, uint32_t size)
{
	uint32_t got[MOST];
	uint64_t h = atomic_load(&head), at;
	int n;

	do {
		for (n = 0, at = (uint32_t)h; n < room && at; n++) {
			got[n] = at - 1;
			at = next[at - 1];
		}
	} while (n && !atomic_compare_exchange_weak(&head, &h, ((h >> 32) + 1) << 32 | at));
	for (int i = 0; i < n; i++) {
		uint32_t s = got[i];
		burst[i] = (struct descriptor){.handle = (uint64_t)++generation[s] << 32 | s, .offset = (uint64_t)s * size, .length = size, .room = size};
	}
	return n;
}

static __attribute__((noinline)) void release(int n)
{
	uint32_t first = 0, last = 0;
	uint64_t h;

	for (int i = 0; i < n; i++) {
		uint32_t s = (uint32_t)burst[i].handle;
		if (generation[s] != burst[i].handle >> 32)
			continue;
		generation[s]++;
		next[s] = first;
		first = s + 1;
		if (!last)
			last = first;
	}
	if (!first)
		return;
	h = atomic_load(&head);
	do
		next[last - 1] = (uint32_t)h;
	while (!atomic_compare_exchange_weak(&head, &h, ((h >> 32) + 1) << 32 | first));
}

int main(int argc, char **argv)
{
	struct timespec from, to;
	uint64_t packets, bytes = 0, n = 0;
	uint32_t size;
	int room;

	if (argc != 4 || (room = atoi(argv[2])) < 1 || room > MOST)
		return 2;
	packets = strtoull(argv[1], NULL, 10);
	size = (uint32_t)atoi(argv[3]);
	for (uint32_t i = 0; i + 1 < SLOTS; i++)
		next[i] = i + 2;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &from);
	while (n < packets) {
		int k = collect(room, size);
		for (int i = 0; i < k; i++)
			bytes += burst[i].length;
		n += (uint64_t)k;
		release(k);
	}
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &to);
	if (bytes != n * size)
		return 1;
	printf("%f\n", ((double)(to.tv_sec - from.tv_sec) * 1e9 + (double)(to.tv_nsec - from.tv_nsec)) / (double)n);
	return 0;
}
